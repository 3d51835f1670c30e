"""StoredRows: the rows that a source of stored trajectories gives a step.

The invariant: they are a function of the seed, the step and the pinned rows, so that a run that is
resumed, replayed or forked draws the same. Only what filters and order need is held in memory;
token data is read for each step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa

from rollart_flow.control.schedule.staleness import Bound
from rollart_flow.episode_rows import as_episodes, starts_of
from rollart_flow.errors import SettingsError
from rollart_flow.operators.batch_columns import EXEMPT
from rollart_flow.operators.drawing import EpochOrder, Units, first, units_of
from rollart_flow.operators.drawn_columns import drawn_schema
from rollart_flow.schema import row_schema
from rollart_flow.store.pins import PinnedRun, PinnedTables, qualified
from rollart_flow.store.rescored import with_rescored
from rollart_flow.store.snapshot import Snapshot
from rollart_flow.store.watch import watch
from rollart_flow.text import counted, one_line
from rollart_flow.types import Outcome, Split

_ENDED = (Outcome.COMPLETED, Outcome.TRUNCATED)
_INDEX = (
    "seq", "trajectory_id", "episode_id", "branch", "group_id", "reward", "policy_version_start",
)  # fmt: skip
_ORDER = {"run": pl.Int32, "source_seq": pl.Int64, "preferred": pl.Boolean, "pair": pl.Int32}
SELF = "self"
"""Name before the ids of rows that are drawn from the run itself."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredSource:
    """Settings of a `stored` node, with the runs that it was pinned to."""

    name: str
    runs: tuple[PinnedRun, ...]
    """The pinned runs; none if the source is the run itself."""
    filter: pl.Expr | None
    prefer: pl.Expr | None
    best: int | None
    count: int
    """Episodes of one step."""
    seed: int
    split: str
    exempt: bool
    paired: bool
    """Whether a preferred and a rejected episode of a group are drawn together."""
    grouped: bool
    """Whether the episodes of a group are drawn together."""
    bound: Bound | None
    """Bound on the age of rows of the run itself; None: they have none."""
    rescored: str | None = None
    """Rescoring whose rewards the rows have; None: those of their run."""
    unscored: bool = False
    """Whether episodes without a reward are drawn too."""

    def with_rewards(self, tables: Snapshot, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Return rows of a pinned run with the rewards that the source learns from.

        Raises:
            SettingsError: the run has no such rescoring.
        """
        if self.rescored is None:
            return rows
        return with_rescored(tables, rows, self.rescored)


class StoredRows:
    """The rows of one source, by step.

    Args:
        uri: address of the run that learns.
        source: settings of the source.
    """

    def __init__(self, uri: str, source: StoredSource) -> None:
        self._source = source
        self._tables = [PinnedTables(each) for each in source.runs]
        self._own = watch(uri)

    def check(self) -> None:
        """Refuse a source that cannot fill a batch.

        Raises:
            SettingsError: a filter raises, it leaves nothing, or less than a batch.
            StoreError: a run cannot be read.
        """
        if not self._source.runs:
            return
        source, found = self._source, self._units.episodes
        runs = " and ".join(each.run for each in source.runs)
        stored = f"{source.name}: {runs} {'has' if len(source.runs) == 1 else 'have'}"
        if not found:
            what = "pairs of a preferred and a rejected episode" if source.paired else "episodes"
            raise SettingsError(f"{stored} no {what} that it lets through; change its filter")
        if found < source.count:
            raise SettingsError(
                f"{stored} {counted(found, 'episode')} that it lets through, fewer than a "
                f"batch of {source.count}; lower batch_size, or widen its filter"
            )
        if (largest := max(self._units.sizes)) > source.count:
            raise SettingsError(
                f"{stored} a group of {largest} episodes, which are drawn together; raise "
                f"batch_size from {source.count}"
            )

    def rows(self, step: int, versions: tuple[int, int], taken: Sequence[str] = ()) -> pa.Table:
        """Return the rows of a step, with the columns of `batches` that say where they are from.

        Args:
            step: training step, from 1.
            versions: versions that the engines served, and that the step trains.
            taken: trajectories of the run itself that are in the batch already.

        Returns:
            Rows of `trajectories` without diffs, with `staleness`, the columns of a source, and
            `EXEMPT`; the rows of an episode are adjacent, and so are those of a pair and of a
            group. The ids are preceded by the name of their source.
        """
        if self._source.runs:
            return self._table(self._tables, self._units, self._order.units(step), versions)
        tables = self._own_tables(step)
        units = self._own_units(tables, versions, taken)
        generator = np.random.default_rng([self._source.seed, step])
        order = generator.permutation(len(units.sizes)).tolist()
        chosen = first(units.sizes, order, self._source.count)
        return self._table([tables], units, chosen, versions)

    @cached_property
    def _units(self) -> Units:
        found = [self._index(number, each) for number, each in enumerate(self._tables)]
        return self._units_of(pl.concat(found))

    @cached_property
    def _order(self) -> EpochOrder:
        return EpochOrder(self._units.sizes, self._source.count, self._source.seed)

    def _units_of(self, index: pl.DataFrame) -> Units:
        return units_of(index, paired=self._source.paired, grouped=self._source.grouped)

    def _own_tables(self, step: int) -> PinnedTables:
        """Return the tables of the run itself up to the preceding step."""
        now = self._own.snapshot()
        known = now.steps.filter(pl.col("step") == step - 1).select("seq").collect()["seq"]
        cut = int(known.item()) if len(known) else 0
        pinned = PinnedRun(self._own.run, now.version("trajectories"), cut)
        return PinnedTables(pinned, now.until(cut))

    def _own_units(
        self, tables: PinnedTables, versions: tuple[int, int], taken: Sequence[str]
    ) -> Units:
        """Return what the run itself can be drawn from."""
        index = self._index(0, tables)
        index = index.filter(~pl.col("episode_id").is_in(list(taken)))
        if (bound := self._source.bound) is not None and not self._source.exempt:
            newest = bound.reference(*versions)
            starts = index["policy_version_start"].to_list()
            fresh = [not bound.is_stale(newest, start) for start in starts]
            index = index.filter(pl.Series(fresh, dtype=pl.Boolean))
        return self._units_of(index)

    def _index(self, number: int, tables: PinnedTables) -> pl.DataFrame:
        """Return the episodes of a run that may be drawn, with what decides on their order."""
        source = self._source
        rows = tables.read(lambda now: _drawable(now, source, self._columns))
        starts = starts_of(rows)
        seqs = rows["seq"].to_numpy()
        episodes = pl.from_arrow(as_episodes(rows, starts))
        assert isinstance(episodes, pl.DataFrame)
        branches = [seqs[a:b].tolist() for a, b in pairwise(starts.tolist())]
        found = episodes.with_columns(
            pl.coalesce("episode_id", "trajectory_id").alias("episode_id"),
            pl.Series("seqs", branches, pl.List(pl.Int64)),
            pl.lit(number, pl.Int32).alias("run"),
        )
        try:
            found = _chosen(found, source)
        except (Exception, pl.exceptions.PanicException) as error:  # users write expressions
            raise SettingsError(f"{source.name}: an expression fails: {one_line(error)}") from error
        own = ("run", "seqs", "group_id", "episode_id", "policy_version_start", "preferred")
        return found.select(own)

    @property
    def _columns(self) -> tuple[str, ...]:
        """Columns that are read to decide: those of the index, and those of expressions."""
        names = row_schema("trajectories").names
        given = [each for each in (self._source.filter, self._source.prefer) if each is not None]
        if any(each.meta.has_multiple_outputs() for each in given):
            return ("seq", *names)
        read = {name for each in given for name in each.meta.root_names()}
        shared = {"shared_tokens", "turns"} & set(names) if read else set()
        return tuple(dict.fromkeys((*_INDEX, *sorted((read | shared) & {*names, "seq"}))))

    def _table(
        self,
        tables: Sequence[PinnedTables],
        units: Units,
        chosen: Sequence[int],
        versions: tuple[int, int],
    ) -> pa.Table:
        """Read the rows of the chosen units, in their order."""
        source, episodes = self._source, list(units.drawn(chosen))
        wanted: defaultdict[int, list[int]] = defaultdict(list)
        for each in episodes:
            wanted[each.run] += each.seqs
        read = [self._read(run, tables[run], seqs) for run, seqs in wanted.items()]
        if not read:
            return drawn_schema().empty_table()
        order = pl.DataFrame(
            [(e.run, seq, e.preferred, e.pair) for e in episodes for seq in e.seqs],
            schema=_ORDER,
            orient="row",
        )
        rows = order.join(
            pl.concat(read), on=["run", "source_seq"], how="left", maintain_order="left"
        )
        ages = pl.lit(0) if source.exempt else versions[0] - pl.col("policy_version_start").min()
        rows = rows.with_columns(
            ages.over("episode_id").alias("staleness"),
            pl.lit(source.exempt).alias(EXEMPT),
        )
        schema = drawn_schema()
        return rows.select(schema.names).to_arrow().cast(schema)

    def _read(self, number: int, tables: PinnedTables, seqs: Sequence[int]) -> pl.DataFrame:
        """Read rows of one run, with the columns that say where they are from."""
        source, pinned = self._source, tables.pinned
        name = self._names[number] if source.runs else SELF
        rows = tables.rows(seqs)
        if source.rescored is not None:
            rows = tables.read(lambda now: source.with_rewards(now, rows.lazy()).collect())
        ids = pl.col("group_id"), pl.coalesce("episode_id", "trajectory_id").alias("episode_id")
        return rows.rename({"seq": "source_seq"}).with_columns(
            *(qualified(name, each) for each in (pl.col("trajectory_id"), *ids)),
            pl.lit(number, pl.Int32).alias("run"),
            pl.lit(pinned.run if source.runs else None, pl.String).alias("source_run"),
            pl.lit(pinned.version, pl.Int64).alias("source_version"),
            pl.lit(source.rescored, pl.String).alias("source_rescored"),
        )

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Name of each run before the ids of its rows; a name that occurs twice has a number."""
        names = [each.run.rpartition("/")[2] for each in self._source.runs]
        return tuple(
            name if names.count(name) == 1 else f"{name}.{number}"
            for number, name in enumerate(names)
        )


def _drawable(tables: Snapshot, source: StoredSource, columns: Sequence[str]) -> pa.Table:
    """Read columns of the rows of a run that can be trained on, in commit order."""
    rows = source.with_rewards(tables, tables.trajectories).filter(
        pl.col("split") == Split(source.split),
        pl.col("outcome").is_in([str(each) for each in _ENDED]),
        pl.col("reward").is_not_null() | source.unscored,
        pl.col("policy_version_start").is_not_null(),
    )
    found = rows.select(columns).collect(engine="streaming").sort("seq")
    return found.unique("trajectory_id", keep="first", maintain_order=True).to_arrow()


def _chosen(episodes: pl.DataFrame, source: StoredSource) -> pl.DataFrame:
    """Return the episodes that the filter, `best` and `prefer` of a source leave, in order."""
    if source.filter is not None:
        episodes = episodes.filter(source.filter)
    if source.best is not None:
        ranked = episodes.sort("reward", "seq", descending=[True, False])
        episodes = ranked.group_by("group_id", maintain_order=True).head(source.best).sort("seq")
    if source.prefer is None:
        return episodes.with_columns(pl.lit(None, pl.Boolean).alias("preferred"))
    labelled = episodes.with_columns(source.prefer.alias("preferred"))
    return labelled.filter(pl.col("preferred").is_not_null())
