"""The rows of a session: its branches, cut where the reasons of their turns change.

The invariant: every sampled token is in one row, as an action that is trained on, or in a row with
a reason.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

from rollart_flow.control.rollout.branch import Branch, branch_rows
from rollart_flow.control.rollout.recorder import ChainTurn, Recorder, Withheld
from rollart_flow.gateway.core.exchange import CallKind, Exchange
from rollart_flow.gateway.core.forest import CapturedBranch
from rollart_flow.gateway.core.retries import CallUnderWay
from rollart_flow.types import Reason

Rows = list[tuple[Recorder, dict[str, Any]]]
WhyWithheld = Callable[[ChainTurn], Withheld | None]
"""Function that returns why the tokens of a turn are not trained on, or None."""


class BranchPart(Branch):
    """Some turns of a branch, as a row of their own.

    Args:
        whole: the branch.
        recorder: record of the turns.
        parent: part that this one came from.
        rewritten_at: position of the whole branch.
    """

    __slots__ = ("_rewritten_at",)

    def __init__(
        self,
        whole: CapturedBranch,
        recorder: Recorder,
        *,
        parent: "BranchPart | None",
        rewritten_at: int | None,
    ) -> None:
        super().__init__(whole.conversation, whole.transcript, recorder, parent=parent)
        self._rewritten_at = rewritten_at

    def columns(self) -> dict[str, Any]:
        """Return the fields of `Trajectory` that hold the conversation.

        The position at which rendering changes tokens is that of the whole branch, if the part has
        it: rendering every part again would take quadratic time.
        """
        assert self.transcript is not None, "captured branches have messages"
        at = self._rewritten_at
        inside = at is not None and at < len(self.recorder)
        return {
            **self.transcript.columns(self.recorder),
            "rewritten_at": at if inside else None,
        }


def capture_rows(
    branches: Sequence[CapturedBranch],
    exchanges: Sequence[Exchange],
    trajectory_id: str,
    withheld: WhyWithheld,
    *,
    per_request: bool,
) -> Rows:
    """Return the rows of a session, and tell its exchanges their branches.

    Args:
        branches: branches in the order in which they began.
        exchanges: calls of the session.
        trajectory_id: id of the first row.
        withheld: says why the tokens of a turn are not trained on.
        per_request: whether each turn is a row of its own.
    """
    parts: dict[CapturedBranch, list[BranchPart]] = {}
    for branch in branches:
        if branch.recorder.own:
            parts[branch] = _cut(branch, parts, withheld, per_request=per_request)
    every = [part for some in parts.values() for part in some]
    for index, part in enumerate(every):
        for turn in part.recorder.own:
            exchanges[turn.number].branch = index
    if not every:
        return [(Recorder(), {"trajectory_id": trajectory_id, "branch": 0})]
    return branch_rows(every, trajectory_id)


def why_withheld(
    calls: Mapping[int, CallUnderWay],
    parents: Collection[int | None],
    trained: Collection[CallKind],
) -> WhyWithheld:
    """Return the function that says why the tokens of a turn are not trained on.

    Args:
        calls: calls that were sampled, by number.
        parents: numbers of the calls that later ones go on from.
        trained: kinds of calls that are trained on.
    """

    def why(turn: ChainTurn) -> Withheld | None:
        call = calls[turn.number]
        exchange = call.exchange
        if not call.answered:
            return Withheld(Reason.UNANSWERED, exchange.error)
        if not call.delivered and turn.number not in parents:
            return Withheld(Reason.UNANSWERED, "the client left before the answer")
        if exchange.kind not in trained:
            return Withheld(Reason.UNTRAINED_CALL, f"a call of kind {exchange.kind}")
        return None

    return why


def _cut(
    branch: CapturedBranch,
    parts: Mapping[CapturedBranch, Sequence[BranchPart]],
    withheld: WhyWithheld,
    *,
    per_request: bool,
) -> list[BranchPart]:
    """Return the parts of a branch: turns that follow each other and have the same reason."""
    recorder = branch.recorder
    at = 0 if branch.stale else branch.conversation.rewritten_at(recorder.token_ids)
    poison = branch.poisoned
    wrong = None if poison is None else Withheld(Reason.CAPTURE_ERROR, poison)
    numbered = enumerate(wrong or withheld(turn) for turn in recorder.own)
    groups = groupby(numbered, key=lambda each: each if per_request else each[1])
    parent = None
    if isinstance(branch.parent, CapturedBranch):
        parent = _holding(parts[branch.parent], recorder.shared_tokens)
    made: list[BranchPart] = []
    for _, group in groups:
        turns = [*group]
        part = recorder.part(turns[0][0], turns[-1][0] + 1)
        part.withheld = turns[0][1]
        parent = BranchPart(branch, part, parent=parent, rewritten_at=at)
        made.append(parent)
    return made


def _holding(parts: Sequence[BranchPart], tokens: int) -> BranchPart:
    """Return the first part of a branch that has all of its first tokens."""
    return next((part for part in parts if len(part.recorder) >= tokens), parts[-1])
