"""`Harness`: the setting that lets a program be the agent of a rollout.

    rollout(prompts, policy, agent=Harness("claude-code"))

A pipeline file that names one loads the module of its profile, and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from rollart_flow.calls import parse_call
from rollart_flow.errors import SettingsError
from rollart_flow.fields import Count, NotNegative, Positive, check_fields
from rollart_flow.gateway.core.volatile import compiled
from rollart_flow.harness.profile import AgentProfile
from rollart_flow.harness.registry import AGENTS
from rollart_flow.secret import check_no_key

WireName = Literal["chat", "responses", "messages", "google"]
CallName = Literal["main", "sub_agent", "compaction", "side"]
Builder = Literal["prefix_merging", "per_request"]
Pairs = tuple[tuple[str, str], ...]
PER_REQUEST = "per_request"
"""Builder with which each call is a row of its own."""
GRACE_S = 30.0
"""Time in which a program has to end after its last answer, before it is killed [s]."""


@dataclass(frozen=True)
class Harness:
    """An agent that is a program, unchanged, whose calls go to the gateway.

    Raises:
        SettingsError: there is no such agent, a setting is out of range, or a variable is a secret.
    """

    name: str
    """Name of the agent, such as "claude-code"; "command" for any other program."""
    command: tuple[str, ...] | list[str] = ()
    """Program and arguments of the agent "command". In these, in `variables` and in `files`, {url},
    {key}, {model}, {instruction}, {workdir}, {home}, {programs} and {context_tokens} stand for the
    gateway's address, the key of the attempt, a name of the policy, what to do, the folder with the
    task, a folder for settings, `programs`, and the size of the policy's context. A program that
    does not name {instruction} reads it from its standard input."""
    wire: WireName | None = None
    """Wire of the agent "command", which needs one."""
    variables: Mapping[str, str] | Pairs = ()
    """Environment variables of the agent "command"."""
    files: Mapping[str, str] | Pairs = ()
    """Texts of files that the agent "command" reads, by their path in the box."""
    programs: str = ""
    """Folder of the node with the agent "command", which boxes see read-only."""
    timeout_s: Positive = 600.0
    """Time of the program [s]. Then the gateway gives it a last answer, so that it ends, and
    what it left is judged; the attempt is truncated. A program that goes on is killed."""
    init_timeout_s: Positive = 60.0
    """Limit of opening the box with the task [s]."""
    judge_timeout_s: Positive = 360.0
    """Limit of judging [s]; above the limit of the domain's own tests."""
    max_calls: Count = 200
    """Calls after which the gateway gives the program its last answer; the attempt is truncated."""
    max_tokens: Count = 1_000_000
    """Sampled tokens after which the gateway gives the program its last answer."""
    trains: tuple[CallName, ...] = ("main", "sub_agent", "compaction")
    """Kinds of calls whose tokens are trained on; "side" are calls such as those for a title."""
    builder: Builder = "prefix_merging"
    """How calls become rows: those that go on from one another are one row with branches (Polar),
    or each is a row of its own ("per_request")."""
    volatile: tuple[str, ...] | list[str] = ()
    """Regular expressions of what the program changes with every call in the messages before the
    first answer, such as the time of day in its system prompt. Such spans are left out of prompts;
    without that each call would begin a branch."""
    init_slots: Count = 4
    """Attempts of one worker whose boxes are opened at a time."""
    run_slots: Count = 64
    """Attempts of one worker whose programs run at a time."""
    judge_slots: Count = 4
    """Attempts of one worker that are judged at a time."""
    memory_mb: NotNegative = 1024
    """Memory for the program, beside that of the task's box [MiB]."""
    disk_mb: NotNegative = 256
    """Size of the program's own files, beside those of the task [MiB]."""
    processes: NotNegative = 128
    """Processes and threads of the program, beside those of the task."""

    def __post_init__(self) -> None:
        for name in ("variables", "files"):
            object.__setattr__(self, name, _pairs(name, getattr(self, name)))
        check_fields(self)
        for variable, text in dict(self.variables).items():
            if "{key}" not in text:
                check_no_key(f"agent.variables.{variable}", text)
        for pattern in self.volatile:
            compiled(pattern)
        if bool(self.command) is not bool(self.wire):
            raise SettingsError(
                'agent: command and wire are given together, as in Harness("command", '
                f'command=[...], wire="chat"); wires are {", ".join(get_args(WireName))}'
            )
        self.profile()

    @property
    def longest_s(self) -> float:
        """Longest time of a box with one task, from its start to the end of the judgement [s]."""
        return self.init_timeout_s + self.timeout_s + 2 * GRACE_S + self.judge_timeout_s

    def profile(self) -> AgentProfile:
        """Return how the program is started.

        Raises:
            SettingsError: there is no such agent, or it takes no such settings.
        """
        names = ("command", "variables", "files", "programs")
        given = {name: getattr(self, name) for name in names if getattr(self, name)}
        return AGENTS.load(self.name).made(given)

    @property
    def said(self) -> str:
        """The agent in words, as in a plan."""
        profile = self.profile()
        return f"agent {profile.name} over {self.wire or profile.wire}"


def _pairs(name: str, given: object) -> object:
    return tuple(given.items()) if isinstance(given, Mapping) else given


def named_harness(text: str) -> Harness:
    """Return the harness of a text such as "claude-code" or "pi(timeout_s=300)".

    Raises:
        SettingsError: the text is wrong.
    """
    name, opened, rest = text.strip().partition("(")
    call = parse_call("agent", f"agent{opened}{rest}", "claude-code or claude-code(timeout_s=300)")
    try:
        return Harness(name.strip(), *call.arguments, **call.keywords)  # type: ignore[arg-type]
    except TypeError as error:
        raise SettingsError(f"agent {text!r}: {error}") from None
