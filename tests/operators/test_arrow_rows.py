"""Row operations of the buffer on Arrow tables."""

import polars as pl

from rollart_flow.operators.arrow_rows import ArrowRows
from rollart_flow.operators.filters import NamedFilter
from tests.builders import branched, table


def test_filters_see_an_episode_as_one_row() -> None:
    rows = table(*branched(0, 0, 0), *branched(0, attempt=1))
    length = NamedFilter("long", pl.col("token_ids").list.len() > 5)
    once = NamedFilter("once", pl.len() == 2)
    found = ArrowRows((length,), (once,))
    assert found.episodes(rows) == [range(3), range(3, 4)]
    assert found.refusals(rows) == [None, "long"], "9 tokens together, and 5"
    assert found.group_refusal([(rows, place) for place in range(4)]) is None
    assert [sample.tokens for sample in found.samples(rows)] == [15, 5]
