"""Calls of captured agents as rows of the table `exchanges`, and back.

The invariant: an attempt has one row for each number of a call. Rows of an attempt are adjacent, in
the order of their arrival.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

import pyarrow as pa

from rollart_flow.schema import row_schema, to_array
from rollart_flow.types import Trajectory
from rollart_flow.types.exchanges import StoredExchange

_FIELDS = tuple(field.name for field in fields(StoredExchange))
_COLUMNS = (*_FIELDS, "queue_s", "call_s")
_VALUES = attrgetter(*_COLUMNS)


def exchanges_table(trajectories: Iterable[Trajectory]) -> pa.Table | None:
    """Uncommitted rows of `exchanges`: the calls of captured agents.

    None if there are none, as in a run of environments: then nothing has to be written. The rows
    are made column by column, since an event loop makes those of hundreds of calls at once.
    """
    called = [each for each in trajectories if each.exchanges]
    if not called:
        return None
    values = [_VALUES(call) for each in called for call in each.exchanges or ()]
    columns = dict(zip(_COLUMNS, zip(*values, strict=True), strict=True))
    columns["episode_id"] = tuple(e.episode_id for e in called for _ in e.exchanges or ())
    schema = row_schema("exchanges")
    arrays = [to_array("exchanges", field, [*columns[field.name]]) for field in schema]
    return pa.table(arrays, schema=schema)


def exchange_from_row(row: Mapping[str, Any]) -> StoredExchange:
    """A `StoredExchange` from one row as a mapping; columns of the writer are ignored."""
    values = {name: row[name] for name in _FIELDS}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return StoredExchange(**(values | lists))
