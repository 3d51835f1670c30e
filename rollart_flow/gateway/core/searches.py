"""Searches for the places of calls, each of which goes on from an earlier one where it can.

The messages of a call mostly begin with those of an earlier call. What those led to is known: only
what new messages lead to is looked for, and what answers that came since have added.

The invariant: a search that goes on from another one finds what a search from the root finds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Generic, Protocol, TypeVar

from rollart_flow.gateway.core.calls import ModelCall
from rollart_flow.types import Message


class SearchNode(Protocol):
    """The answers that follow one answer, or the root."""

    @property
    def lengths(self) -> Iterable[int]:
        """Numbers of messages of the prompts between."""


N = TypeVar("N", bound=SearchNode)
R = TypeVar("R")

KEPT_SEARCHES = 8
"""Searches that are kept: conversations that a session interleaves, such as sub-agents."""


@dataclass(slots=True, eq=False)
class Search(Generic[N, R]):
    """The answers that the messages of one call lead to, as far as they were searched."""

    root: N
    nodes: dict[N, int]
    """Numbers of messages up to each node."""
    reached: dict[int, list[R]] = field(default_factory=dict)
    """Answers that the messages have, by the number of messages up to each."""
    pending: list[tuple[N, int]] = field(default_factory=list)
    """Nodes and lengths of prompts that the messages do not reach."""
    seen: int = 0
    """Number of additions to nodes that are considered."""
    messages: Sequence[Message] = ()
    echoes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def common(self, call: ModelCall) -> int:
        """Return how many first messages of a call are those of the search, with their echoes.

        Equal calls of tools may differ in the types of numbers, so that they have to be the same
        object, as they are where a wire has not read them again.
        """
        mine, others = self.messages, call.messages
        same = [*map(is_, mine, others)]
        count = same.index(False) if False in same else len(same)
        while count < len(same) and (same[count] or _equal(mine[count], others[count])):
            count += 1
        if count == len(mine):
            later = sum(index in call.echoes for index in range(count, len(others)))
            alike = len(call.echoes) - later == len(self.echoes)
            if alike and self.echoes.items() <= call.echoes.items():
                return count
        changed = (
            index
            for index in {*self.echoes, *call.echoes}
            if self.echoes.get(index) != call.echoes.get(index)
        )
        return min([count, *changed])

    def up_to(self, count: int) -> "Search[N, R]":
        """Return the search for the first messages alone."""
        nodes = {node: used for node, used in self.nodes.items() if used <= count}
        reached = {used: [*found] for used, found in self.reached.items() if used <= count}
        return Search(self.root, nodes, reached)


class Searches(Generic[N, R]):
    """The last searches of a session, and the answers that were added to its nodes."""

    def __init__(self) -> None:
        self._kept: list[Search[N, R]] = []
        """The latest last."""
        self._added: list[tuple[N, int]] = []
        """Nodes that got an answer, and the number of messages of its prompt."""

    def added(self, node: N, length: int) -> None:
        """Note that a node has one more answer."""
        self._added.append((node, length))

    def resumed(self, call: ModelCall, root: N) -> tuple[Search[N, R], list[tuple[N, int]]]:
        """Return a search for a call, with the nodes and lengths of prompts to look at.

        Args:
            call: the call.
            root: node of the root.
        """
        count, known = 0, None
        for each in self._kept:
            if each.root is root and (common := each.common(call)) > count:
                count, known = common, each
        if known is None or self._changed(known, count):
            found, todo = Search[N, R](root, {root: 0}), [(root, each) for each in root.lengths]
        elif count < len(known.messages):
            found = known.up_to(count)
            nodes = found.nodes.items()
            todo = [(n, each) for n, used in nodes for each in n.lengths if used + each >= count]
        else:
            found = known
            self._kept.remove(known)
            news = (each for each in self._added[known.seen :] if each[0] in known.nodes)
            todo = [*dict.fromkeys([*known.pending, *news])]
            known.pending = []
        found.seen = len(self._added)
        found.messages, found.echoes = call.messages, call.echoes
        self._kept = [*self._kept[1 - KEPT_SEARCHES :], found]
        return found, todo

    def _changed(self, search: Search[N, R], count: int) -> bool:
        """Return whether answers were added where a search has looked, within some messages."""
        for node, length in self._added[search.seen :]:
            used = search.nodes.get(node)
            if used is not None and used + length < count:
                return True
        return False


def _equal(one: Message, other: Message) -> bool:
    return one == other and not one.tool_calls
