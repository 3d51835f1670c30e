"""Pinned runs: the rows of other runs that a run learns from, as of one moment.

The invariant: what is drawn from a pinned run does not depend on what it gets later, since a row is
committed once and keeps its seq, however the files of its table are merged.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import polars as pl

from rollart_flow.errors import StoreError
from rollart_flow.store import files
from rollart_flow.store.damage import again_if_merged
from rollart_flow.store.info import check_whole, info_uri
from rollart_flow.store.layout import resolve
from rollart_flow.store.snapshot import Snapshot
from rollart_flow.store.watch import watch
from rollart_flow.types import EventKind

T = TypeVar("T")
_TABLE = "trajectories"
STORED = "stored"
"""Key of the pinned runs in the event that begins a run."""


@dataclass(frozen=True, slots=True)
class PinnedRun:
    """The trajectories of one run up to a seq."""

    run: str
    """Address of the run."""
    version: int
    """Version of its Delta table trajectories."""
    seq: int
    """Rows up to this seq are drawn from."""


def pin(run: str | os.PathLike[str], store: str | os.PathLike[str] | None = None) -> PinnedRun:
    """Pin the rows that a run has now.

    Args:
        run: a path, a URI, or the name of a run in the store.
        store: store in which names are looked up.

    Raises:
        RunNotFoundError: there is no such run; the message suggests similar names.
        StoreError: its tables cannot be read, or its import has not ended.
    """
    uri = resolve(run, store)
    check_whole(uri)
    now = watch(uri).snapshot()
    return PinnedRun(uri, now.version(_TABLE), now.seq)


def described_pins(pins: Mapping[str, Sequence[PinnedRun]]) -> dict[str, Any]:
    """Return pinned runs by node, for the detail of the event that begins a run."""
    said = {node: [asdict(each) for each in of] for node, of in pins.items()}
    return {STORED: said} if said else {}


def recorded_pins(now: Snapshot) -> dict[str, tuple[PinnedRun, ...]]:
    """Return the pinned runs that `described_pins` described, by node; none for other runs."""
    begun = now.events.filter(pl.col("kind") == EventKind.RUN).sort("seq").select("detail")
    details = begun.head(1).collect()["detail"].to_list()
    found = json.loads(details[0]).get(STORED, {}) if details else {}
    return {node: tuple(PinnedRun(**each) for each in of) for node, of in found.items()}


def recorded_pin(now: Snapshot, drawn: PinnedRun) -> PinnedRun:
    """Return a run as it was pinned, up to the last row that could be drawn.

    Args:
        now: tables of the run that learns.
        drawn: the other run up to a row that was drawn from it.

    Raises:
        StoreError: no event tells that the run was pinned.
    """
    pins = [each for of in recorded_pins(now).values() for each in of]
    fitting = [each.seq for each in pins if (each.run, each.version) == (drawn.run, drawn.version)]
    if not fitting or max(fitting) < drawn.seq:
        raise StoreError(
            f"no event of this run says up to where it drew from the run at {drawn.run}; its table "
            "events is damaged"
        )
    return replace(drawn, seq=max(fitting))


class PinnedTables:
    """The tables of a pinned run, opened once for any number of reads.

    Its rows never change, so that one snapshot serves all reads; another one is taken if files of
    the first were merged and removed.

    Args:
        pinned: the run.
        now: a snapshot of it, which has its rows; by default one is taken at the first read.
    """

    def __init__(self, pinned: PinnedRun, now: Snapshot | None = None) -> None:
        self.pinned = pinned
        self._watch = watch(pinned.run)
        self._now = now

    def read(self, of: Callable[[Snapshot], T]) -> T:
        """Return what a function reads of the tables up to the pinned seq.

        Raises:
            StoreError: the run is gone or is another one by now, or a file of it is missing.
        """

        def read() -> T:
            try:
                return of(self._opened())
            except (FileNotFoundError, pl.exceptions.PanicException):
                self._now = None
                self._check_there()
                raise

        return again_if_merged(self.pinned.run, read)

    def rows(self, seqs: Iterable[int]) -> pl.DataFrame:
        """Read rows of `trajectories` by their seq, in the order of seq.

        Raises:
            StoreError: as `read`, and if a row is missing.
        """
        wanted = sorted(set(seqs))
        chosen = pl.col("seq").is_between(wanted[0], wanted[-1]), pl.col("seq").is_in(wanted)
        rows = self.read(lambda now: now.trajectories.filter(*chosen).collect().sort("seq"))
        if missing := sorted(set(wanted) - set(rows["seq"])):
            raise StoreError(f"{self._said}, lack the row of seq {missing[0]}; restore its folder")
        return rows

    def _opened(self) -> Snapshot:
        if self._now is None:
            self._check_there()
            now, version = self._watch.snapshot(self.pinned.seq), self.pinned.version
            if now.version(_TABLE) < version:
                raise StoreError(
                    f"{self._said}, are not there: its table {_TABLE} is at version "
                    f"{now.version(_TABLE)}, and they were read at {version}; another run has "
                    "taken its place"
                )
            self._now = now
        return self._now

    def _check_there(self) -> None:
        if files.read(info_uri(self.pinned.run)) is None:
            raise StoreError(f"{self._said}, are gone with it; restore its folder")
        check_whole(self.pinned.run)

    @property
    def _said(self) -> str:
        return f"rows of the run at {self.pinned.run}, which a batch was drawn from"


def qualified(source: str, ids: pl.Expr) -> pl.Expr:
    """Return the ids of rows that are drawn from a source, which no row of the run itself has."""
    return pl.concat_str(pl.lit(f"{source}/"), ids).alias(ids.meta.output_name())


def another(rows: pl.DataFrame, drawn: pl.DataFrame) -> str | None:
    """Return the id of a row that is not the one that was drawn, or None.

    Args:
        rows: rows of `trajectories`.
        drawn: seq (`source_seq`) and qualified id of each row as it was drawn.
    """
    pairs = rows.join(drawn, left_on="seq", right_on="source_seq", suffix="_drawn")
    for own, taken in pairs.select("trajectory_id", "trajectory_id_drawn").iter_rows():
        if taken.partition("/")[2] != own:
            return str(own)
    return None
