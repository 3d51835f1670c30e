"""Read access to a stored run: live, after its end, or as of an earlier moment.

Reading takes no lock: a run that another process writes is read as of its last complete group of
commits. Every access takes a new snapshot; `snapshot()` returns one to reuse.
"""

import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Self

import polars as pl
import pyarrow as pa

from rollart_flow.errors import StoreError
from rollart_flow.schema import stored_schema
from rollart_flow.store.damage import again_if_merged
from rollart_flow.store.images import read_image
from rollart_flow.store.info import RunInfo, RunStatus, check_whole, read_info
from rollart_flow.store.layout import resolve
from rollart_flow.store.pins import PinnedRun, PinnedTables, another, recorded_pin
from rollart_flow.store.rescored import with_rescored
from rollart_flow.store.snapshot import Snapshot, Tables
from rollart_flow.store.sql import run_sql
from rollart_flow.store.watch import watch
from rollart_flow.types import Image


class Run(Tables):
    """The tables and the information of one run. Use `open_run` to create one."""

    def __init__(self, uri: str, seq: int | None = None) -> None:
        """Open the run at an address, up to a seq if one is given."""
        self.uri = uri
        self._seq = seq
        self._watch = watch(uri)
        check_whole(uri)

    def __reduce__(self) -> tuple[type[Self], tuple[str, int | None]]:
        return type(self), (self.uri, self._seq)

    def __repr__(self) -> str:
        moment = "" if self._seq is None else f", seq={self._seq}"
        return f"Run({self.uri!r}{moment})"

    @property
    def path(self) -> str:
        """Same as `uri`; a local folder unless the run is in an object store."""
        return self.uri

    @property
    def info(self) -> RunInfo:
        """The contents of `run.json`, read again at every access."""
        return read_info(self.uri)

    @property
    def status(self) -> RunStatus:
        """Current status of the run, also for a run opened as of an earlier moment."""
        return self.info.status

    def snapshot(self) -> Snapshot:
        """Return all tables at one moment, consistent with each other."""
        return self._watch.snapshot(self._seq)

    def table(self, name: str) -> pl.LazyFrame:
        """Rows of one table now, unsorted."""
        return self.snapshot().table(name)

    def as_of(
        self, *, step: int | None = None, seq: int | None = None, time: datetime | None = None
    ) -> Self:
        """The same run as it was at an earlier moment.

        Args:
            step: include everything committed up to the row of `steps` of this step.
            seq: include everything up to this seq.
            time: include everything committed up to this moment (with a time zone).

        Raises:
            StoreError: the step is unknown, or not exactly one moment is given.
        """
        if sum(moment is not None for moment in (step, seq, time)) != 1:
            raise StoreError("as_of takes exactly one of step, seq and time")
        if step is not None:
            cut = self.snapshot().seq_of_step(step)
        elif time is not None:
            cut = self.snapshot().seq_at(time)
        else:
            assert seq is not None
            cut = seq
        earlier = type(self)(self.uri, cut if self._seq is None else min(cut, self._seq))
        earlier._watch = self._watch
        return earlier

    def batch(self, step: int) -> pa.Table:
        """The batch that a step trained on, in order of position.

        Returns:
            Rows of `trajectories` with the additional columns of `batches` (step, position,
            advantage, weight, staleness, lag, policy_version, trained_version), in the declared
            types.
            `pl.from_arrow` converts the result to a DataFrame without copying. Rows that were drawn
            with the rewards of a rescoring (`source_rescored`) have these.

        Raises:
            StoreError: the step has no batch, or a trajectory of the batch is not stored, be it in
                another run that it was drawn from.
        """
        return again_if_merged(self.uri, lambda: self._batch(step))

    def _batch(self, step: int) -> pa.Table:
        snapshot = self.snapshot()
        manifest = snapshot.batches.filter(pl.col("step") == step).sort("position").collect()
        if manifest.is_empty():
            raise StoreError(f"no batch of step {step} in the run at {self.uri}")
        drawn = manifest.filter(pl.col("source_seq").is_not_null())
        theirs = [self._drawn_rows(snapshot, rows) for rows in _sources(drawn)]
        rows = pl.concat([self._own_rows(snapshot, manifest), *theirs])
        own = [name for name in manifest.columns if name not in rows.columns]
        joined = manifest.select("trajectory_id", *own).join(
            rows, on="trajectory_id", how="left", maintain_order="left"
        )
        if missing := joined.filter(pl.col("seq").is_null())["trajectory_id"].to_list():
            raise StoreError(
                f"step {step}: trajectory {missing[0]!r} of its batch is not in trajectories"
            )
        declared = stored_schema("trajectories"), stored_schema("batches")
        schema = pa.schema([*declared[0], *(declared[1].field(name) for name in own)])
        return joined.select(schema.names).to_arrow().cast(schema)

    def _own_rows(self, snapshot: Snapshot, manifest: pl.DataFrame) -> pl.DataFrame:
        """Read the rows of a batch that this run made for it."""
        made = manifest.filter(pl.col("source_seq").is_null())
        if made.is_empty():
            return snapshot.trajectories.head(0).collect()
        started = pl.col("policy_version") - pl.col("staleness")
        bounds = made.select(
            pl.col("seq").max(), started.min().alias("oldest"), pl.col("policy_version").max()
        ).row(0, named=True)
        return (
            snapshot.trajectories.filter(
                pl.col("seq") < bounds["seq"],
                pl.col("policy_version_start").is_between(
                    bounds["oldest"], bounds["policy_version"]
                ),
                pl.col("trajectory_id").is_in(made["trajectory_id"].to_list()),
            )
            .collect()
            .sort("seq")
            .unique("trajectory_id", keep="first")
        )

    def _drawn_rows(self, snapshot: Snapshot, drawn: pl.DataFrame) -> pl.DataFrame:
        """Read the rows of a batch that were drawn from one run, with the ids of the batch.

        Raises:
            StoreError: the other run is gone, or is not the one that was read.
        """
        first = drawn.row(0, named=True)
        source, rescored = first["source_run"] or self.uri, first["source_rescored"]
        seqs = drawn["source_seq"].to_list()
        pinned = PinnedRun(source, first["source_version"], max(seqs))
        if rescored is not None:  # its verdicts came later than the rows that they judge
            pinned = recorded_pin(snapshot, pinned)
        tables = PinnedTables(pinned)
        rows = tables.rows(seqs)
        ids = ("trajectory_id", "group_id", "episode_id")
        renamed = drawn.select("source_seq", *ids)
        if (wrong := another(rows, renamed)) is not None:
            raise StoreError(
                f"row {wrong} of the run at {source} is not the one that "
                f"step {first['step']} was trained on; another run has taken its place"
            )
        if rescored is not None:
            rows = tables.read(lambda now: with_rescored(now, rows.lazy(), rescored).collect())
        found = rows.drop(ids).join(renamed, left_on="seq", right_on="source_seq")
        return found.select(rows.columns)

    def image(self, image_id: str) -> Image:
        """Return an image that the column `images` of `trajectories` names, with its PNG file.

        Raises:
            StoreError: the name is none of an image, or the run does not have it whole.
        """
        return read_image(self.uri, image_id)

    def sql(self, query: str, *, where: Iterable[pl.Expr] = ()) -> pl.DataFrame:
        """Run SQL over the tables at one moment.

        Args:
            query: SQL over trajectories, batches, steps, weights, events, bindings, evaluations.
            where: filters of `trajectories`: only rows for which all of them are true are kept;
                see `rollart_flow.algorithms.filters`.

        Raises:
            QueryError: the query is wrong, or does not only read these tables.
        """
        return again_if_merged(self.uri, lambda: self._sql(query, where))

    def _sql(self, query: str, where: Iterable[pl.Expr]) -> pl.DataFrame:
        frames = self.snapshot().frames()
        for expression in where:
            frames["trajectories"] = frames["trajectories"].filter(expression)
        return run_sql(query, frames)


def _sources(drawn: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the rows of `batches` that were drawn from each run, with the same rewards."""
    yield from drawn.partition_by("source_run", "source_rescored", maintain_order=True)


def open_run(run: str | os.PathLike[str], *, store: str | os.PathLike[str] | None = None) -> Run:
    """Open a run for reading; another process may still be writing it.

    Args:
        run: a path, a URI, or the name of a run in the store.
        store: store in which names are looked up; $ROLLART_STORE or ./runs by default.

    Raises:
        RunNotFoundError: there is no such run; the message suggests similar names.
        StoreError: the run has a newer schema version, is damaged, or its import has not ended.
    """
    return Run(resolve(run, store))
