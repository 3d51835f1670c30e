"""The contracts in `schemas/*.json`, and what is refused in their name."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from rollart_flow import schema
from rollart_flow.errors import SchemaError
from rollart_flow.schema import (
    TABLES,
    WRITER_COLUMNS,
    check,
    delta_schema,
    row_schema,
    stored_schema,
    to_table,
)
from rollart_flow.types.events import EventKind
from tests.builders import batch_row

FOLDER = Path(schema.__file__).parent.parent / "schemas"

EVALUATION = {
    "step": 10,
    "policy_version": 10,
    "domain": "frozenlake",
    "metric": "success",
    "value": 0.5,
    "n": 64,
}


def fields(struct: dict[str, Any]) -> list[dict[str, Any]]:
    """All fields of a Delta StructType, nested ones too."""
    found = []
    for field in struct["fields"]:
        found.append(field)
        kind = field["type"]
        while isinstance(kind, dict) and kind["type"] == "array":
            kind = kind["elementType"]
        if isinstance(kind, dict):
            found += fields(kind)
    return found


@pytest.mark.parametrize("table", TABLES)
def test_every_column_says_what_it_is(table: str) -> None:
    declared = json.loads((FOLDER / f"{table}.json").read_text())
    for field in fields(declared):
        comment = field["metadata"]["comment"]
        assert comment.endswith("."), field["name"]
        if field["nullable"]:
            assert "null" in comment, f"{field['name']}: when is it null?"


def test_the_contract_of_events_lists_every_kind() -> None:
    declared = json.loads((FOLDER / "events.json").read_text())
    (kind,) = (each for each in declared["fields"] if each["name"] == "kind")
    listed = kind["metadata"]["comment"].removeprefix("What happened: ").rstrip(".")
    assert listed.split(", ") == [each.value for each in EventKind]


@pytest.mark.parametrize("table", TABLES)
def test_a_declaration_is_what_delta_stores(table: str, tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, schema=delta_schema(table))
    found = pa.schema(DeltaTable(tmp_path).schema().to_arrow())
    assert found.equals(stored_schema(table), check_metadata=True)
    assert stored_schema(table).names[:2] == list(WRITER_COLUMNS)
    assert row_schema(table).names == stored_schema(table).names[2:]


def test_the_folder_holds_the_tables_and_nothing_else() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{table}.json" for table in TABLES}
    with pytest.raises(SchemaError, match=r"no table 'rollouts'; the tables of a run are traj"):
        delta_schema("rollouts")


@pytest.mark.parametrize(
    ("table", "required"),
    [
        (
            "trajectories",
            "seq committed_at trajectory_id episode_id group_id task_id domain attempt outcome"
            " error policy_version_start policy_version_end token_ids action_mask logprobs"
            " token_versions turns reward reward_parts sampling split env_seed env_version"
            " created_at finished_at scored_at reset_s",
        ),
        (
            "batches",
            "step position trajectory_id group_id weight staleness policy_version trained_version"
            " advantage",
        ),
        ("evaluations", "step policy_version domain metric value n"),
        (
            "steps",
            "step policy_version loss grad_norm reward_mean staleness_max wait_s suspend_s"
            " update_s train_s step_s tokens fingerprint",
        ),
    ],
)
def test_columns_that_users_rely_on(table: str, required: str) -> None:
    assert set(required.split()) <= set(stored_schema(table).names)


def test_token_columns_are_lists_of_narrow_types() -> None:
    kinds = {
        name: stored_schema("trajectories").field(name).type.value_type
        for name in ("token_ids", "action_mask", "logprobs", "token_versions")
    }
    assert kinds == {
        "token_ids": pa.int32(),
        "action_mask": pa.bool_(),
        "logprobs": pa.float32(),
        "token_versions": pa.int32(),
    }
    turn = stored_schema("trajectories").field("turns").type.value_type
    assert " ".join(field.name for field in turn) == (
        "start end observation action reward generate_s step_s hardware worker finish_reason"
    )


def test_rows_become_a_table_of_the_declared_types() -> None:
    table = to_table("evaluations", [EVALUATION, EVALUATION | {"value": 1.0}])
    assert table.schema.equals(row_schema("evaluations"))
    assert table["value"].to_pylist() == [0.5, 1.0]
    assert to_table("evaluations", []).schema.equals(row_schema("evaluations"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": "high"}, r"evaluations\.value: .*; expected double"),
        ({"n": 2**31}, r"evaluations\.n: .*; expected int32"),
        ({"n": 1.5}, r"evaluations\.n: 1\.5 given; expected int32"),
        ({"domain": None}, r"evaluations\.domain: null given, a value expected"),
        ({"mood": "good"}, "evaluations: unknown column 'mood'"),
    ],
)
def test_wrong_rows_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        to_table("evaluations", [EVALUATION, EVALUATION | change])


def test_a_missing_column_is_named() -> None:
    row = {name: value for name, value in EVALUATION.items() if name != "metric"}
    with pytest.raises(SchemaError, match="evaluations: column 'metric' is missing"):
        to_table("evaluations", [row])
    with pytest.raises(SchemaError, match="evaluations: column 'metric' is missing"):
        check("evaluations", to_table("evaluations", [EVALUATION]).drop_columns(["metric"]))


def test_a_table_is_put_into_the_declared_order() -> None:
    table = to_table("evaluations", [EVALUATION])
    turned = table.select(table.column_names[::-1])
    assert check("evaluations", turned).equals(table)
    assert check("evaluations", turned).schema.equals(row_schema("evaluations"))


def test_castable_is_not_enough() -> None:
    table = to_table("evaluations", [EVALUATION])
    place = table.column_names.index("step")
    for kind in (pa.int64(), pa.int16(), pa.string()):
        wrong = table.set_column(place, "step", table["step"].cast(kind))
        with pytest.raises(SchemaError, match=rf"evaluations\.step: type {kind} given, int32 exp"):
            check("evaluations", wrong)


def test_names_and_nullability_inside_lists_do_not_matter_but_types_do() -> None:
    rows = pa.table({"step": pa.array([1], pa.int32()), "advantage": pa.array([[0.5]])})
    base = to_table("batches", [batch_row(1, 0, "t", "g", advantage=[0.5])])
    place = base.column_names.index("advantage")
    item = pa.array([[0.5]], pa.list_(pa.field("item", pa.float32())))
    assert check("batches", base.set_column(place, "advantage", item)).equals(base)
    with pytest.raises(SchemaError, match=r"batches\.advantage: type list<item: double> given"):
        check("batches", base.set_column(place, "advantage", rows["advantage"]))


def test_nulls_are_refused_at_any_depth() -> None:
    base = to_table("evaluations", [EVALUATION])
    place = base.column_names.index("value")
    with pytest.raises(SchemaError, match=r"evaluations\.value: null given"):
        check("evaluations", base.set_column(place, "value", pa.nulls(1, pa.float64())))
    row = batch_row(1, 0, "t", "g", advantage=[1.0, None])
    with pytest.raises(SchemaError, match=r"batches\.advantage\.element: null given"):
        to_table("batches", [row])
