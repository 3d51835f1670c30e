"""Token columns are several times smaller than JSONL, and every reader understands them."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from rollart_flow.schema import TABLES, stored_schema
from rollart_flow.store.encoding import encode, row_group_rows, stamp, statistics, writer_options
from rollart_flow.store.layout import table_uri
from tests.builders import batches, events, trajectories
from tests.runs import new_writer


def stored(table: str, rows: pa.Table) -> pa.Table:
    """Rows as they are written."""
    return stamp({table: rows}, {table: (1, rows.num_rows)}, 0)[table]


def test_tokens_take_less_than_a_third_of_jsonl() -> None:
    rng = np.random.default_rng(0)
    rows = trajectories(range(8), tokens=2000)
    for name, drawn in {
        "token_ids": rng.integers(0, 1000, 16000).astype(np.int32),
        "logprobs": -rng.exponential(1.0, 16000).astype(np.float32),
    }.items():
        kind = rows.schema.field(name).type
        offsets = pa.array(range(0, 16001, 2000), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, pa.array(drawn)).cast(kind)
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), lists)
    text = "".join(
        json.dumps(row, default=str, separators=(",", ":")) + "\n" for row in rows.to_pylist()
    )
    assert encode("trajectories", stored("trajectories", rows)).size < 0.3 * len(text)


@pytest.mark.parametrize("table", TABLES)
def test_every_column_of_every_table_has_an_encoding(table: str) -> None:
    empty = stored_schema(table).empty_table()
    data = encode(table, empty)
    leaves = {column.path for column in pq.ParquetFile(pa.BufferReader(data)).schema}
    options = writer_options(table)
    named = {*(options["use_dictionary"] or ()), *(options["column_encoding"] or {})}
    assert named | set(options["write_statistics"]) <= leaves
    assert pq.read_table(pa.BufferReader(data), schema=stored_schema(table)).equals(empty)


def test_encodings_follow_the_types() -> None:
    options = writer_options("trajectories")
    assert options["column_encoding"] == {
        f"{name}.element": "BYTE_STREAM_SPLIT"
        for name in (
            "token_ids.list",
            "logprobs.list",
            "token_versions.list",
            "kept_token_ids.list.element.list",
            "sampling.stop_token_ids.list",
            "sampling.allowed_token_ids.list",
        )
    } | {f"turns.list.element.{name}": "BYTE_STREAM_SPLIT" for name in ("start", "end")}
    assert "turns.list.element.observation" in options["use_dictionary"]


def test_three_readers_agree(tmp_path: Path) -> None:
    given = trajectories(range(3), tokens=50)
    writer = new_writer(tmp_path)
    writer.commit("trajectories", given)
    uri = table_uri(writer.uri, "trajectories")
    expected = given["token_ids"].to_pylist()
    assert pl.read_delta(uri)["token_ids"].to_list() == expected
    assert DeltaTable(uri).to_pyarrow_table()["token_ids"].to_pylist() == expected
    assert pq.read_table(uri)["token_ids"].to_pylist() == expected


def test_statistics_bound_what_a_file_holds() -> None:
    rows = stored("trajectories", trajectories(range(3), version=5))
    assert json.loads(statistics(rows)) == {
        "numRecords": 3,
        "minValues": {"seq": 1, "policy_version_start": 5},
        "maxValues": {"seq": 3, "policy_version_start": 5},
        "nullCount": {"seq": 0, "policy_version_start": 0},
    }
    place = rows.column_names.index("policy_version_start")
    field = rows.schema.field(place)
    nulls = rows.set_column(place, field, pa.nulls(3, pa.int32()))
    assert json.loads(statistics(nulls))["nullCount"]["policy_version_start"] == 3
    assert "policy_version_start" not in json.loads(statistics(nulls))["maxValues"]
    assert json.loads(statistics(stored("batches", batches(4, [1]))))["maxValues"]["step"] == 4


def test_row_groups_are_cut_by_size() -> None:
    small = stored("events", events("x"))
    assert row_group_rows(small) > 10_000
    large = stored("trajectories", trajectories(range(2), tokens=1_000_000))
    assert row_group_rows(large) == 64


def test_files_that_are_not_going_to_be_merged_are_small_and_the_others_are_fast() -> None:
    few = stored("trajectories", trajectories(range(4)))
    many = stored("trajectories", trajectories(range(2), tokens=1_000_000))
    used = [
        pq.ParquetFile(pa.BufferReader(encode("trajectories", rows))).metadata
        for rows in (few, many, few)
    ]
    compressions = [each.row_group(0).column(0).compression for each in used]
    assert compressions == ["LZ4", "ZSTD", "LZ4"]
    assert writer_options("trajectories")["compression"] == "zstd"  # that of merged files
