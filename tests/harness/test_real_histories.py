"""Unchanged programs start sub-agents and compact their history, and every call has its place."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollart_flow.gateway.core.exchange import CallKind
from tests.gateway.core.rig import called
from tests.harness.clients import delivered, dialect, played, workplace
from tests.harness.playing import installed, kinds, report
from tests.harness.policies import COUNTED, DelegatingEngine

pytestmark = pytest.mark.whole

SUB_AGENTS: dict[str, tuple[str, dict[str, object]]] = {
    "claude-code": (
        "Agent",
        {
            "description": "Count", "prompt": "Count.", "subagent_type": "Plan",
            "run_in_background": False,
        },
    ),
    "gemini-cli": ("invoke_agent", {"agent_name": "generalist", "prompt": "Count."}),
    "qwen-code": (
        "agent",
        {
            "description": "Count", "prompt": "Count.", "subagent_type": "Explore",
            "run_in_background": False,
        },
    ),
    "opencode": ("task", {"description": "Count", "prompt": "Count.", "subagent_type": "general"}),
}  # fmt: skip
"""Calls of tools that start a sub-agent."""
ENDS_SUB_AGENT = {"gemini-cli": called(("complete_task", {"result": {"response": "One file."}}))}
"""What ends a sub-agent where a text does not. Codex has sub-agents beside their parent; pi,
mini-SWE-agent, and the agents of smolagents and of the OpenAI Agents SDK as they are started here
have none."""


@pytest.mark.parametrize("name", installed(*SUB_AGENTS))
def test_sub_agents_are_trajectories_of_their_own(name: str, tmp_path: Path) -> None:
    task = dialect(name, str(tmp_path / "work"))
    asks = called(SUB_AGENTS[name])
    counted = ENDS_SUB_AGENT.get(name, COUNTED)
    place = workplace(name, tmp_path, asks, counted, task.writes, task.ends)
    code, rows = asyncio.run(played(place))
    calls, line = place.rig.exchanges, report(place, [*rows])
    assert code == 0, place.output[-2000:]
    assert (place.work / "out.txt").read_text() == "seven\n", place.output[-2000:]
    assert kinds(place) == [CallKind.MAIN, CallKind.SUB_AGENT, CallKind.MAIN, CallKind.MAIN], line
    assert [each.parent for each in calls] == [None, None, 0, 2], line
    assert (len(rows), delivered(rows)) == (2, 1.0), line


@pytest.mark.parametrize("name", installed("codex"))
def test_a_sub_agent_that_runs_beside_its_parent_is_a_trajectory(name: str, tmp_path: Path) -> None:
    task = dialect(name, str(tmp_path / "work"))
    begins = called(("multi_agent_v1__spawn_agent", {"message": "Count."}))
    waits = called(("multi_agent_v1__wait_agent", {"targets": ["AGENT"]}))
    texts = (begins, waits, task.writes, task.ends)
    place = workplace(name, tmp_path, *texts, engine=DelegatingEngine)
    code, rows = asyncio.run(played(place))
    calls, line = place.rig.exchanges, report(place, [*rows])
    assert code == 0, place.output[-2000:]
    assert (place.work / "out.txt").read_text() == "seven\n", place.output[-2000:]
    main = [each for each in calls if each.kind is CallKind.MAIN]
    (other,) = (each for each in calls if each.kind is CallKind.SUB_AGENT)
    assert [each.parent for each in main] == [None, *(each.number for each in main[:-1])], line
    assert other.parent is None, line
    assert len(main) == 4, line
    assert (len(rows), delivered(rows)) == (2, 1.0), line


SUMMARY = "The file in.txt begins with the word seven; its text is still to be written to out.txt."


@dataclass(frozen=True)
class Compaction:
    """A task at which a program compacts its history, and what it does then."""

    context_tokens: int
    """Context of the policy, which the program is told."""
    lines: int
    """Length of in.txt, whose text fills the context."""
    before: tuple[str, ...]
    """Answers before the compaction; names of those of `Dialect`, or texts."""
    summaries: tuple[str, ...] = (SUMMARY,)
    """Answers to calls for a summary."""


SNAPSHOT = f"<state_snapshot>{SUMMARY}</state_snapshot>"
READS = called(("read_file", {"file_path": "in.txt"}))
PRINTS = tuple(
    called(("run_shell_command", {"command": f"cat {each}", "is_background": False}))
    for each in ("in.txt", "./in.txt", "in.txt ")
)
"""Commands of one output, since Qwen Code shows a file that it has read once."""
COMPACTS = {
    # It compares with the threshold what the answer before has used.
    "claude-code": Compaction(60_000, 1500, ("both", "fails"), (f"<summary>{SUMMARY}</summary>",)),
    "codex": Compaction(33_000, 700, ("both", "fails")),
    # It summarizes up to a message of the user that is no result of a tool. A run without a
    # terminal has one message of the user, so that there is nothing to summarize, until the fifth
    # repeated call: then it says to the policy that it turns in a circle. It asks for each summary
    # twice.
    "gemini-cli": Compaction(70_000, 300, (READS,) * 5 + ("fails",), (SNAPSHOT, f"{SNAPSHOT} ")),
    "qwen-code": Compaction(90_000, 600, (*PRINTS, "fails"), (SNAPSHOT,)),
    # It compacts after an answer of text.
    "opencode": Compaction(32_000, 700, ("both", "I go on.")),
    # It keeps an eighth of the context, by its estimate of four characters for each token.
    "pi": Compaction(20_000, 400, ("both", "both", "fails")),
}
"""Programs that compact their history. The others have no such thing: mini-SWE-agent, the agents
of smolagents and of the OpenAI Agents SDK send what they have, and end where it is too long."""


@pytest.mark.parametrize("name", installed(*COMPACTS))
def test_a_compaction_is_a_trajectory_of_the_same_episode(name: str, tmp_path: Path) -> None:
    case, task = COMPACTS[name], dialect(name, str(tmp_path / "work"))
    before = [getattr(task, each, each) for each in case.before]
    texts = (*before, *case.summaries, task.writes, task.ends)
    place = workplace(name, tmp_path, *texts, context_tokens=case.context_tokens)
    lines = [f"word {number} of {number * 7919 % 1000}" for number in range(case.lines)]
    (place.work / "in.txt").write_text("\n".join(["seven", *lines]))
    code, rows = asyncio.run(played(place))
    calls, line = place.rig.exchanges, report(place, [*rows])
    assert code == 0, place.output[-2000:]
    assert (place.work / "out.txt").exists(), place.output[-2000:]
    main, asked = [CallKind.MAIN], [CallKind.COMPACTION] * len(case.summaries)
    assert kinds(place) == [*main * len(before), *asked, *main * 2], line
    assert calls[-1].parent == calls[-2].number, line
    assert len({row.episode_id for row in rows}) == 1
    assert delivered(rows) == 1.0, line
