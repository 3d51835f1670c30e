"""Pinned runs: the rows of other runs that a run learns from, as of one moment.

The invariant: what is drawn from a pinned run does not depend on what it gets later, since a row is
committed once and keeps its seq, however the files of its table are merged.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from rollart_flow.errors import StoreError
from rollart_flow.store import files
from rollart_flow.store.damage import again_if_merged
from rollart_flow.store.info import info_uri
from rollart_flow.store.layout import resolve
from rollart_flow.store.snapshot import Snapshot, Watch
from rollart_flow.types import EventKind

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
        StoreError: its tables cannot be read.
    """
    uri = resolve(run, store)
    now = Watch(uri).snapshot()
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


def rows_at(run: str, version: int, seqs: Iterable[int]) -> pl.DataFrame:
    """Read rows of `trajectories` of a run by their seq, in the order of seq.

    Args:
        run: address of the run.
        version: version of the table in which the rows are known to be.
        seqs: seq of each row.

    Raises:
        StoreError: the run is gone or is another one by now, or a row or a file of it is missing.
    """
    wanted = sorted(set(seqs))
    said = f"rows of the run at {run}, which a batch was drawn from"
    if files.read(info_uri(run)) is None:
        raise StoreError(f"{said}, are gone with it; restore its folder")

    def read() -> pl.DataFrame:
        now = Watch(run).snapshot()
        if now.version(_TABLE) < version:
            raise StoreError(
                f"{said}, are not there: its table {_TABLE} is at version {now.version(_TABLE)}, "
                f"and they were read at {version}; another run has taken its place"
            )
        between = pl.col("seq").is_between(wanted[0], wanted[-1])
        return now.trajectories.filter(between, pl.col("seq").is_in(wanted)).collect().sort("seq")

    rows = again_if_merged(run, read)
    if missing := sorted(set(wanted) - set(rows["seq"])):
        raise StoreError(f"{said}, lack the row of seq {missing[0]}; restore its folder")
    return rows


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
