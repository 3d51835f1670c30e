"""Another run that the trainer of a simulated run draws from: real tables, which change meanwhile.

Reading and writing them takes no virtual time. Their own generator of chances leaves that of the
run alone, so that a plan is the same with and without them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from rollart_flow.operators.stored_rows import StoredRows, StoredSource
from rollart_flow.store import Run, RunInfo, RunWriter
from rollart_flow.store.pins import PinnedRun, pin
from tests.builders import table, trajectory
from tests.dst.plans import Plan

_COMMITS, _GROUP = 5, 2
_DRAWN = 3
"""Rows that each step draws; not a divisor of those that there are."""


class OtherRun:
    """A stored run of some commits, pinned as it is when a simulated run begins.

    Args:
        uri: address of the new run.
        seed: seed of what happens to its tables meanwhile.
    """

    def __init__(self, uri: str, seed: int) -> None:
        self._chance = Random(f"stored {seed}")
        self._writer = RunWriter.create(uri, RunInfo("other", "test", seed))
        self._groups = 0
        for _ in range(_COMMITS):
            self._grow()
        self.pinned: PinnedRun = pin(uri)
        rows = Run(uri).trajectories.select("seq", "trajectory_id", "token_ids").collect()
        self.known = {seq: (name, tokens) for seq, name, tokens in rows.iter_rows()}
        """Id and tokens of each pinned row, by seq."""

    def reader(self) -> StoredRows:
        """Return a reader as a process has it that has just started."""
        return StoredRows(
            "",
            StoredSource(
                name="stored", runs=(self.pinned,), filter=None, prefer=None, best=None,
                count=_DRAWN, seed=0, split="train", exempt=True, paired=False, grouped=False,
                bound=None,
            ),
        )  # fmt: skip

    def disturb(self) -> None:
        """Let the run go on, or merge its files and remove those that were merged."""
        if self._chance.random() < 0.3:
            self._writer.maintain(retention=timedelta(0))
        else:
            self._grow()

    def fault_of(self, rows: pa.Table) -> str | None:
        """What is wrong with drawn rows; None if all were there when the run was pinned."""
        if rows.num_rows != _DRAWN:
            return f"{rows.num_rows} rows, not {_DRAWN}"
        if set(rows["source_version"].to_pylist()) != {self.pinned.version}:
            return f"they are not of version {self.pinned.version}"
        for seq, *row in drawn(rows):
            if self.known.get(seq) != tuple(row):
                return f"the row of seq {seq} is {row}, not {self.known.get(seq)}"
        return None

    def _grow(self) -> None:
        self._groups += 1
        length = self._chance.randint(1, 4)
        sampled: dict[str, tuple[Any, ...]] = {
            "token_ids": (self._groups,) * length, "action_mask": (True,) * length,
            "logprobs": (-1.0,) * length, "token_versions": (0,) * length,
        }  # fmt: skip
        made = [trajectory(f"g{self._groups}", number) for number in range(_GROUP)]
        longer: dict[str, Any] = {
            name: (*getattr(made[0], name), *more) for name, more in sampled.items()
        }
        rows = table(*(replace(each, **longer) for each in made))
        self._writer.commit("trajectories", rows)


def drawn(rows: pa.Table) -> list[tuple[int, str, list[int]]]:
    """Return seq, id in the other run, and tokens of drawn rows, in their order."""
    return [
        (row["source_seq"], row["trajectory_id"].partition("/")[2], row["token_ids"])
        for row in rows.select(["source_seq", "trajectory_id", "token_ids"]).to_pylist()
    ]


@contextmanager
def other_run(plan: Plan) -> Iterator[OtherRun | None]:
    """Provide the run that a plan draws from, if it does."""
    if not plan.stored:
        yield None
        return
    with TemporaryDirectory() as folder:
        yield OtherRun(f"{folder}/other", plan.seed)
