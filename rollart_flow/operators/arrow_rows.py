"""Operations of the buffer on rows that are Arrow tables."""

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.attempt_rows import KEYS
from rollart_flow.episode_rows import as_episodes, starts_of
from rollart_flow.operators.filters import NamedFilter, group_refusal, refusals
from rollart_flow.rows import samples
from rollart_flow.types import Sample

_LEAST_RUN = 4
"""Mean number of adjacent rows from which on rows are sliced, which copies none, not taken."""


class ArrowRows:
    """Row operations on Arrow tables; implements `control.buffer.storage.RowFormat`."""

    def __init__(
        self, filters: Sequence[NamedFilter] = (), group_filters: Sequence[NamedFilter] = ()
    ) -> None:
        self._filters = filters
        self._group_filters = group_filters

    def episodes(self, rows: pa.Table) -> list[range]:
        return [range(start, end) for start, end in pairwise(starts_of(rows).tolist())]

    def samples(self, rows: pa.Table) -> list[Sample]:
        return samples(rows)

    def take(self, rows: pa.Table, places: Sequence[int]) -> pa.Table:
        return rows.take(list(places))

    def pick(self, places: Sequence[tuple[pa.Table, int]]) -> pa.Table:
        runs: list[tuple[pa.Table, int, int]] = []
        for rows, place in places:
            if runs and runs[-1][0] is rows and sum(runs[-1][1:]) == place:
                runs[-1] = (rows, runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((rows, place, 1))
        if len(runs) * _LEAST_RUN <= len(places):
            return pa.concat_tables(rows.slice(start, count) for rows, start, count in runs)
        first: dict[int, int] = {}
        parts: list[pa.Table] = []
        total = 0
        for rows, _ in places:
            if id(rows) not in first:
                first[id(rows)] = total
                parts.append(rows)
                total += rows.num_rows
        joined = pa.concat_tables(parts).combine_chunks()
        return joined.take([first[id(rows)] + place for rows, place in places])

    def with_staleness(self, rows: pa.Table, staleness: Sequence[int]) -> pa.Table:
        return rows.append_column("staleness", pa.array(staleness, pa.int32()))

    def refusals(self, rows: pa.Table) -> list[str | None]:
        return refusals(self._filters, as_episodes(rows))

    def group_refusal(self, members: Sequence[tuple[pa.Table, int]]) -> str | None:
        if not self._group_filters:
            return None
        return group_refusal(self._group_filters, as_episodes(self.pick(members)))

    def rows_of(self, table: str, rows: pa.Table, trajectory_ids: Sequence[str]) -> pa.Table:
        attempt, *_ = KEYS[table]
        rows = rows.filter(pc.is_in(rows[attempt], pa.array(trajectory_ids, pa.string())))
        columns = (rows[name].to_pylist() for name in KEYS[table])
        first: dict[tuple[object, ...], int] = {}
        for place, key in enumerate(zip(*columns, strict=True)):
            first.setdefault(key, place)
        return rows.take(pa.array(first.values(), pa.int64()))

    def newest(self, rows: pa.Table, column: str) -> int:
        newest: int = pc.max(rows[column]).as_py()
        return newest
