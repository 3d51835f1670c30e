"""Attempts of captured agents of the demonstration run: a program repairs code in a box.

An attempt has a main branch and, by its number, a compaction of it, a sub-agent, a side call and a
call whose answer nobody took. Every sampled token is in one row.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from tokenizers import Tokenizer

from rollart_flow.types import Reason, Trajectory
from rollart_flow.types.exchanges import StoredExchange
from rollart_flow.types.messages import Action, Message, Tool, ToolCall, system, tool_result, user
from rollart_flow.types.suspicions import SuspicionKind
from rollart_flow.types.trajectories import branch_id
from rollart_flow.types.verdicts import Verdict
from rollart_flow.ui.demo import texts
from rollart_flow.ui.demo.attempts import DemoSlot, at, stored
from rollart_flow.ui.demo.chains import DemoChain

BASH = Tool("bash", "Run a command in the box.", {"type": "object"})
VERIFIER = sha256(b"demonstration verifier").hexdigest()


@dataclass
class DemoBranch:
    """A branch of a session, as it grows."""

    chain: DemoChain
    kind: str
    parent: int | None = None
    reason: Reason | None = None
    messages: list[tuple[int, Message]] = field(default_factory=list)
    last_call: int | None = None


class DemoSession:
    """The calls of one attempt, in order, and the branches that they make."""

    def __init__(self, slot: DemoSlot, tokenizer: Tokenizer) -> None:
        """Begin with the main branch, which has no call yet."""
        self.slot = slot
        self.branches = [DemoBranch(slot.chain(tokenizer), "main")]
        self.calls: list[StoredExchange] = []
        self._now = slot.created_s + 0.6
        self._errors = 0

    def branch(self, kind: str, *, keep: int = 0, reason: Reason | None = None) -> int:
        """Begin a branch with the first `keep` tokens of the main one, and return its number."""
        number = len(self.branches)
        chain = self.branches[0].chain.fork(
            f"{self.slot.name}.{number}", keep, delivered=reason is None
        )
        self.branches.append(DemoBranch(chain, kind, 0, reason))
        return number

    def call(
        self, branch: int, shown: Sequence[Message], action: Action, **fields: Any
    ) -> tuple[ToolCall, ...]:
        """Add a call that shows messages and gets an action; return the action's tool calls."""
        number, mine = len(self.calls), self.branches[branch]
        chain, before = mine.chain, len(mine.chain.token_ids)
        said = " ".join(filter(None, (action.thinking, action.text)))
        said += "".join(json.dumps(call.as_json()["function"]) for call in action.tool_calls)
        turn = chain.turn(
            "\n".join(each.shown for each in shown), said, last=number >= 2 and mine.kind == "main"
        )
        versions = chain.token_versions
        start = next(i for i in range(before, turn.end) if versions[i] >= 0)
        mine.messages += [(number, each) for each in (*shown, action.as_message())]
        arrived, queue_s = self._now, 0.05 + 0.02 * number
        self._now += queue_s + turn.generate_s + turn.step_s
        request = {"messages": [each.as_json() for each in shown]}
        made = self._exchange(number, mine, arrived, **fields)
        made = replace(
            made,
            trajectory_id=branch_id(self.slot.name, branch),
            request=json.dumps(request, ensure_ascii=False),
            start=before,
            answer_start=start,
            answer_end=turn.end,
            trained_tokens=turn.end - start if mine.reason is None else 0,
            answer=json.dumps({"message": action.as_message().as_json()}, ensure_ascii=False),
            answer_id=f"answer-{self.slot.name}-{number}",
            generating_at=at(arrived + queue_s),
            ended_at=at(arrived + queue_s + turn.generate_s),
            hung_up=mine.reason is Reason.UNANSWERED,
        )
        self.calls.append(made)
        mine.last_call = number
        return action.tool_calls

    def refuse(self, branch: int, refusal: str, error: str) -> None:
        """Add a call that gets no answer."""
        made = self._exchange(len(self.calls), self.branches[branch], self._now)
        self.calls.append(replace(made, refusal=refusal, error=error))
        self._now += 0.2

    def _exchange(
        self, number: int, mine: DemoBranch, arrived: float, **fields: Any
    ) -> StoredExchange:
        root = mine.last_call is None and mine.chain.shared == 0
        parent = mine.last_call if mine.last_call is not None else (None if root else 0)
        made = StoredExchange(
            number=number,
            wire="chat",
            kind=mine.kind,
            evidence="root" if root else "echo",
            parent=parent,
            request="{}",
            reused_messages=0 if root else len(mine.messages),
            arrived_at=at(arrived),
            generating_at=None,
            ended_at=at(arrived + 0.1),
            client="demo-agent/1.0",
            model="policy",
            stream=number % 2 == 0,
            digest=sha256(f"{self.slot.name} {number}".encode()).hexdigest(),
            requested='{"temperature": 0.2}',
            effective='{"temperature": 1.0}',
            dropped=("temperature",),
        )
        return replace(made, **fields)

    def rows(self, reward: float, **fields: Any) -> list[Trajectory]:
        """Return the rows of the attempt; `fields` differ in branch 0."""
        made = []
        for number, branch in enumerate(self.branches):
            parent = None if branch.parent is None else branch_id(self.slot.name, branch.parent)
            calls = [c for _, m in branch.messages for c in m.tool_calls]
            row = self.slot.trajectory(
                branch.chain, reward,
                trajectory_id=branch_id(self.slot.name, number), branch=number, parent=parent,
                messages=stored(branch.messages), tools=json.dumps([BASH.as_json()]),
                tool_calls=len(calls), tool_errors=sum(c.error is not None for c in calls),
                reason=branch.reason, finished_at=at(self._now), scored_at=at(self._now + 0.3),
            )  # fmt: skip
            made.append(row)
        return [replace(made[0], exchanges=tuple(self.calls), **fields), *made[1:]]


def repair(slot: DemoSlot, tokenizer: Tokenizer) -> list[Trajectory]:
    """Return the rows of an agent that repairs a parser, or tries to."""
    session = DemoSession(slot, tokenizer)
    cheats = slot.attempt == 2
    begin = (system("You repair code. Call bash."), user(texts.BUG))
    asked = session.call(0, begin, Action("I look around.", texts.THINKING, (_bash("ls -R"),)))
    shown = (tool_result(asked[0], texts.LISTING),)
    asked = session.call(0, shown, Action("", None, (_bash("cat parse.py"), _odd(slot))))
    source = (tool_result(asked[0], texts.SOURCE), tool_result(asked[1], "no such tool"))
    write = "sed -i s/.*/assert True/ tests/test_parse.py" if cheats else "cat > parse.py"
    asked = session.call(0, source, Action("Now I change it.", None, (_bash(write),)))
    _beside(session, slot)
    result = texts.PASSED if slot.solved or cheats else texts.FAILED
    session.call(0, (tool_result(asked[0], result),), Action("The tests pass now."), joins=1)
    return session.rows(float(slot.solved), **_judged(slot, cheats))


def _beside(session: DemoSession, slot: DemoSlot) -> None:
    """Add what an attempt has besides its main branch, by its number."""
    title = (system("Name the conversation in three words."), user(texts.BUG))
    if slot.attempt in (0, 1):
        side = session.branch("side", reason=Reason.UNTRAINED_CALL)
        session.call(side, title, Action("Repair a parser"), replays=1)
    if slot.attempt == 0:
        kept = session.branches[0].chain.turns[0].end
        compaction = session.branch("compaction", keep=kept)
        asked = (user("Write down what you know."),)
        session.call(compaction, asked, Action(texts.SUMMARY))
        helper = session.branch("sub_agent")
        begin = (system("You read code for another agent."), user("Which line fails?"))
        session.call(helper, begin, Action("The second one. " + texts.HOSTILE))
    if slot.attempt == 3:
        session.refuse(0, "overflow", "the prompt has 9,000 tokens, more than 8,192")
        left = session.branch("main", reason=Reason.UNANSWERED)
        session.call(left, (user("Are you there?"),), Action("I am still thinking about it"))


def _bash(command: str) -> ToolCall:
    return ToolCall(f"call-{len(command)}", BASH.name, {"command": command})


def _odd(slot: DemoSlot) -> ToolCall:
    """Return a call that cannot be made."""
    return ToolCall(
        f"odd-{slot.attempt}", "brwose", {}, "there is no tool 'brwose'", '{"name": "brwose"}'
    )


def _judged(slot: DemoSlot, cheats: bool) -> dict[str, Any]:
    passed, message = slot.solved, None if slot.solved else texts.FAILED.strip()
    verdicts = (
        Verdict(key="tests/test_parse.py::test_one", passed=True, seconds=0.01),
        Verdict(
            key="tests/test_parse.py::test_empty", passed=passed, seconds=0.02, message=message
        ),
        Verdict(key="tests/test_parse.py::test_<b>odd</b>", passed=None, message="skipped"),
    )
    touched = SuspicionKind.TOUCHED_TESTS.said("tests/test_parse.py")
    return {
        "diff": texts.CHEAT if cheats else texts.DIFF,
        "verifier": VERIFIER,
        "suspicions": (touched,) if cheats else (),
        "verdicts": verdicts,
        "reward_parts": {"tests": float(slot.solved), "style": 0.0},
    }
