"""The table of checks of tasks beside the runs of a store."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.errors import SchemaError, SettingsError
from rollart_flow.schema import to_table
from rollart_flow.store import list_runs, new_run_uri
from rollart_flow.store.admissions import AdmissionTable, key_of, uncommitted
from tests.runs import BEGAN, new_writer


def row(task: str, *, admitted: bool = True, hours: int = 0, **fields: Any) -> dict[str, Any]:
    made = {
        "task_id": task, "domain": "d", "task_digest": task, "image_digest": "i",
        "verifier_digest": "v", "flaky": False, "seconds": 1.0, "admitted": admitted,
        "reason": None if admitted else "doing nothing solves it",
        "checked_at": BEGAN + timedelta(hours=hours),
    }  # fmt: skip
    return made | fields


def test_the_newest_check_of_a_key_counts(tmp_path: Path) -> None:
    table = AdmissionTable(tmp_path)
    assert table.newest().is_empty()
    table.add(to_table("admissions", [row("a", admitted=False), row("b")]))
    table.add(to_table("admissions", [row("a", hours=1), row("a", verifier_digest="w")]))
    table.add(to_table("admissions", [row("c", domain="e")]))
    found = AdmissionTable(tmp_path).newest(["d"])
    assert found.select("task_id", "verifier_digest", "admitted").rows() == [
        ("b", "v", True), ("a", "w", True), ("a", "v", True),
    ]  # fmt: skip
    assert table.newest()["seq"].sort().to_list() == [2, 3, 4, 5]
    assert key_of(found.to_dicts()[0]) == ("d", "b", "i", "v")


def test_it_is_no_run_and_rows_of_it_go_into_one(tmp_path: Path) -> None:
    table = AdmissionTable(tmp_path)
    table.add(to_table("admissions", [row("a")]))
    assert list_runs(str(tmp_path)) == []
    with pytest.raises(SettingsError, match="is that of the table of checks"):
        new_run_uri("admissions", str(tmp_path))
    with new_writer(tmp_path) as writer:
        writer.commit("admissions", uncommitted(table.newest()))


def test_rows_of_another_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"admissions\.seconds"):
        AdmissionTable(tmp_path).add(to_table("admissions", [row("a", seconds="long")]))
    AdmissionTable(tmp_path).add(to_table("admissions", []))
    assert not list(tmp_path.iterdir())
