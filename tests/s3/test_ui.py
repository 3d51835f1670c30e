"""Pages of a run that lies in S3."""

from starlette.testclient import TestClient

from rollart_flow.store import RunInfo, RunWriter
from rollart_flow.ui.app import ui_app
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.guard import Readers
from tests.builders import step_row


def test_a_run_in_s3_is_listed_and_read_as_one_of_this_machine(remote: str) -> None:
    with RunWriter.create(f"{remote}/a", RunInfo("a", "test", 0)) as writer:
        writer.commit("steps", step_row(1))
        writer.commit("steps", step_row(2))
    app = ui_app(RunCatalog(store=remote), Readers.at("127.0.0.1", None))
    client = TestClient(app, base_url="http://localhost")
    (run,) = client.get("/api/runs").json()["runs"]
    assert (run["name"], run["uri"], run["steps"]) == ("a", f"{remote}/a", 2)
    answer = client.get("/api/run/a/page/overview").json()
    assert [row[0] for row in answer["views"]["overview.loss"]["rows"]] == [1, 2]
    query = {"q": "select step from steps order by step desc", "at": "1"}
    assert client.get("/api/run/a/sql", params=query).json()["views"]["sql"]["rows"] == [[1]]
