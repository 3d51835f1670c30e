"""The checks of tasks in a store in S3."""

from rollart_flow.schema import to_table
from rollart_flow.store import list_runs
from rollart_flow.store.admissions import AdmissionTable
from tests.store.test_admissions import row


def test_checks_are_added_and_read(remote: str) -> None:
    table = AdmissionTable(remote)
    assert table.newest().is_empty()
    table.add(to_table("admissions", [row("a", admitted=False), row("b")]))
    table.add(to_table("admissions", [row("a", hours=1)]))
    found = AdmissionTable(remote).newest(["d"])
    assert found.select("task_id", "admitted", "seq").rows() == [("b", True, 2), ("a", True, 3)]
    assert list_runs(remote) == []
