"""The order in which stored episodes are drawn: units of episodes, shuffled anew in each pass.

A unit is what stays together: an episode, the pair of a preferred and a rejected one, or the
episodes of a group. Invariant: the units of a step depend on the seed, the step and the sizes
alone, and none is drawn twice in one pass.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl


@dataclass(frozen=True, slots=True)
class DrawnEpisode:
    """A stored episode as part of a batch."""

    run: int
    """Number of its run among those of the source."""
    seqs: tuple[int, ...]
    """seq of the row of each of its branches."""
    preferred: bool | None
    pair: int | None
    """Number of its pair within the batch; None without pairs."""


class Units:
    """The units that can be drawn.

    Args:
        units: places in the index of the episodes of each unit.
        index: one row for each episode: run, seqs, preferred.
        paired: whether the units are pairs.
    """

    def __init__(self, units: Sequence[Sequence[int]], index: pl.DataFrame, *, paired: bool):
        self._units = units
        self._index = index
        self._paired = paired
        self.sizes = [len(unit) for unit in units]
        """Number of episodes of each unit."""

    @property
    def episodes(self) -> int:
        """Number of episodes that can be drawn."""
        return sum(self.sizes)

    def drawn(self, chosen: Sequence[int]) -> Iterator[DrawnEpisode]:
        """Yield the episodes of some units, in their order."""
        for number, unit in enumerate(chosen):
            for place in self._units[unit]:
                row = self._index.row(place, named=True)
                pair = number if self._paired else None
                yield DrawnEpisode(row["run"], tuple(row["seqs"]), row["preferred"], pair)


def units_of(index: pl.DataFrame, *, paired: bool, grouped: bool) -> Units:
    """Return the units of an index of episodes, which has a row for each.

    With `paired`, the n-th preferred episode of a group and its n-th rejected one are a unit; with
    `grouped`, the episodes of a group are.
    """
    if not (paired or grouped):
        return Units([[place] for place in range(index.height)], index, paired=False)
    groups: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for place, key in enumerate(index.select("run", "group_id").iter_rows()):
        groups[key].append(place)
    if not paired:
        return Units(list(groups.values()), index, paired=False)
    preferred = index["preferred"].to_list()
    pairs = [
        pair
        for members in groups.values()
        for pair in zip(
            [place for place in members if preferred[place] is True],
            [place for place in members if preferred[place] is False],
            strict=False,  # the n-th of both, as far as there are both
        )
    ]
    return Units(pairs, index, paired=True)


class EpochOrder:
    """The units of each step: passes over all units, each shuffled and cut into batches.

    A batch ends before it would exceed its size; what is left at the end of a pass, too little for
    a batch, is left out of that pass.

    Args:
        sizes: episodes of each unit, none more than `count`.
        count: episodes of a batch.
        seed: seed of the shuffles.
    """

    def __init__(self, sizes: Sequence[int], count: int, seed: int) -> None:
        self._sizes = sizes
        self._count = count
        self._seed = seed
        self._ends: list[int] = []
        """Number of batches up to the end of each pass."""
        self._pass: tuple[int, list[list[int]]] = (-1, [])
        """Number and batches of the pass that was cut last."""

    def units(self, step: int) -> list[int]:
        """Return the units of a step, from 1."""
        number = 0
        while True:
            if number == len(self._ends):
                before = self._ends[-1] if self._ends else 0
                self._ends.append(before + len(self._batches(number)))
            if step <= self._ends[number]:
                before = self._ends[number - 1] if number else 0
                return self._batches(number)[step - 1 - before]
            number += 1

    def _batches(self, number: int) -> list[list[int]]:
        """Return the batches of a pass."""
        if self._pass[0] != number:
            generator = np.random.default_rng([self._seed, number])
            order = generator.permutation(len(self._sizes)).tolist()
            found = []
            while order:
                batch = first(self._sizes, order, self._count)
                order = order[len(batch) :]
                found.append(batch)
            if len(found) > 1 and sum(self._sizes[unit] for unit in found[-1]) < self._count:
                found.pop()
            self._pass = number, found
        return self._pass[1]


def first(sizes: Sequence[int], order: Sequence[int], count: int) -> list[int]:
    """Return the units at the beginning of an order that together have at most `count` episodes."""
    taken, episodes = [], 0
    for unit in order:
        episodes += sizes[unit]
        if episodes > count:
            break
        taken.append(unit)
    return taken
