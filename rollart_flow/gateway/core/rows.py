"""The rows of a session: its branches, cut where the reasons of their turns change.

The invariant: every sampled token is in one row, as an action that is trained on, or in a row with
a reason.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from rollart_flow.control.rollout.branch import Branch, branch_rows
from rollart_flow.control.rollout.chain_turn import ChainTurn, Withheld
from rollart_flow.control.rollout.recorder import Recorder
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


class SessionRows:
    """The rows of a session, each of which is taken once, of a session that may go on.

    Args:
        per_request: whether each turn is a row of its own.
    """

    def __init__(self, *, per_request: bool) -> None:
        self._per_request = per_request
        self._parts: dict[CapturedBranch, list[BranchPart]] = {}
        self._every: list[BranchPart] = []
        """Parts that were taken, by the numbers of their rows."""
        self._turns: dict[CapturedBranch, int] = {}
        """Number of own turns that were taken, by branch."""

    def take(
        self,
        branches: Sequence[CapturedBranch],
        exchanges: Sequence[Exchange],
        trajectory_id: str,
        withheld: WhyWithheld,
        settled: Callable[[ChainTurn], bool],
    ) -> Rows:
        """Return the rows of further turns, and tell their exchanges the numbers of the rows.

        Args:
            branches: branches in the order in which they began.
            exchanges: calls of the session.
            trajectory_id: id of the first row.
            withheld: says why the tokens of a turn are not trained on.
            settled: whether a turn may have a row; turns after one that may not wait too.
        """
        first = len(self._every)
        for branch in branches:
            self._take(branch, withheld, settled)
        for index, part in enumerate(self._every[first:], first):
            for turn in part.recorder.own:
                exchanges[turn.number].branch = index
        return branch_rows(self._every, trajectory_id, first)

    def _take(
        self,
        branch: CapturedBranch,
        withheld: WhyWithheld,
        settled: Callable[[ChainTurn], bool],
    ) -> None:
        start, own = self._turns.get(branch, 0), branch.recorder.own
        after = start + sum(1 for _ in takewhile(settled, own[start:]))
        parent = self._parent(branch, start)
        if after == start or (parent is None and _has_parent(branch)):
            return
        made = _cut(branch, range(start, after), parent, withheld, per_request=self._per_request)
        self._parts.setdefault(branch, []).extend(made)
        self._every += made
        self._turns[branch] = after

    def _parent(self, branch: CapturedBranch, start: int) -> BranchPart | None:
        """Return the part that the next one of a branch comes from; None if there is none yet."""
        if start:
            return self._parts[branch][-1]
        if not isinstance(branch.parent, CapturedBranch):
            return None
        shared, parts = branch.recorder.shared_tokens, self._parts.get(branch.parent, ())
        return next((part for part in parts if len(part.recorder) >= shared), None)


def _has_parent(branch: CapturedBranch) -> bool:
    return isinstance(branch.parent, CapturedBranch)


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
    turns: range,
    parent: BranchPart | None,
    withheld: WhyWithheld,
    *,
    per_request: bool,
) -> list[BranchPart]:
    """Return the parts of a branch: turns that follow each other and have the same reason.

    Args:
        branch: the branch.
        turns: indices of its own turns.
        parent: part that the first one comes from.
        withheld: says why the tokens of a turn are not trained on.
        per_request: whether each turn is a part.
    """
    recorder = branch.recorder
    at = 0 if branch.stale else branch.conversation.rewritten_at(recorder.token_ids)
    poison = branch.poisoned
    wrong = None if poison is None else Withheld(Reason.CAPTURE_ERROR, poison)
    numbered = ((index, wrong or withheld(recorder.own[index])) for index in turns)
    made: list[BranchPart] = []
    for _, group in groupby(numbered, key=lambda each: each if per_request else each[1]):
        alike = [*group]
        part = recorder.part(alike[0][0], alike[-1][0] + 1)
        part.withheld = alike[0][1]
        parent = BranchPart(branch, part, parent=parent, rewritten_at=at)
        made.append(parent)
    return made
