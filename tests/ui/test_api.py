"""The answers of the server: rows of views of one moment, values that browsers can hold, errors."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from starlette.testclient import TestClient

from rollart_flow.schema import TABLES
from rollart_flow.store import open_run
from rollart_flow.ui.app import STATIC, ui_app
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.guard import Readers
from rollart_flow.views.pages import PAGES
from tests.runs import small_run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("api"))
    small_run(folder)
    return folder


@pytest.fixture
def client(store: Path) -> TestClient:
    app = ui_app(RunCatalog(store=str(store)), Readers.at("127.0.0.1", None))
    return TestClient(app, base_url="http://localhost")


def rows(answer: dict[str, Any], view: str) -> list[dict[str, Any]]:
    """Rows of a view of an answer by column."""
    found = answer["views"][view]
    names = [column["name"] for column in found["columns"]]
    return [dict(zip(names, row, strict=True)) for row in found["rows"]]


def test_runs_have_the_figures_of_their_steps(client: TestClient) -> None:
    (run,) = client.get("/api/runs").json()["runs"]
    assert (run["name"], run["status"], run["steps"], run["trained"]) == (
        "small",
        "finished",
        4,
        32,
    )


def test_a_damaged_run_is_listed_with_its_error(client: TestClient, store: Path) -> None:
    (store / "torn").mkdir()
    (store / "torn" / "run.json").write_text("{")
    try:
        found = {run["name"]: run for run in client.get("/api/runs").json()["runs"]}
    finally:
        (store / "torn" / "run.json").unlink()
    assert found["torn"]["status"] == "damaged"
    assert "torn" in found["torn"]["error"]
    assert found["small"]["steps"] == 4


def test_a_page_shows_queries_that_give_its_rows(client: TestClient, store: Path) -> None:
    answer = client.get("/api/run/small/page/overview").json()
    run = open_run(str(store / "small"))
    for name, view in answer["views"].items():
        assert run.sql(view["query"]).height == len(view["rows"]), name
    assert [row["step"] for row in rows(answer, "overview.loss")] == [1, 2, 3, 4]


def test_an_earlier_moment_has_the_rows_up_to_it(client: TestClient, store: Path) -> None:
    cut = open_run(str(store / "small")).snapshot().seq_of_step(2)
    answer = client.get(f"/api/run/small/page/overview?at={cut}").json()
    assert answer["cut"] == cut < answer["newest"]
    assert [row["step"] for row in rows(answer, "overview.latest")] == [2, 1]


def test_the_order_of_one_view_is_asked_for_by_its_name(client: TestClient) -> None:
    address = "/api/run/small/page/overview?overview.latest.sort=step&views=overview.latest"
    answer = client.get(address).json()
    assert list(answer["views"]) == ["overview.latest"]
    assert [row["step"] for row in rows(answer, "overview.latest")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("run/nope/about", 404, "nope"),
        ("run/..%2f..%2fetc", 404, "nothing at this address"),
        ("run/small/page/nope", 404, "there are"),
        ("run/small/page/overview?at=-1", 400, "at is '-1'"),
        ("run/small/page/overview?overview.latest.offset=x", 400, "no number"),
        ("run/small/page/overview?overview.latest.sort=x", 400, "no column 'x'"),
        ("run/small/page/found", 400, "text has no value"),
        ("run/small/cell?view=nope&column=x", 404, "no view"),
        ("nope", 404, "nothing at this address"),
    ],
)
def test_a_wrong_address_is_answered_by_one_line(
    client: TestClient, address: str, status: int, said: str
) -> None:
    answer = client.get(f"/api/{address}")
    assert answer.status_code == status
    assert said in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


HOSTILE = (
    *("", "%00", "..", "%2e%2e", "..%2f..", "%ff%fe", "%ed%a0%80", "'", '"', ";", "-1", "NaN"),
    *("9" * 400, "9" * 5000, "a" * 5000, "small%00", "%E2%80%AE", "1e999"),
)
ADDRESSES = (
    *("run/{}/about", "run/{}/page/overview", "run/{}/waits", "run/small/image/{}", "run/{}/now"),
    *("run/small/page/{}", "compare?run={}&run=small", "runs?offset={}", "run/small/sql?q={}"),
    *("run/small/sql.csv?q={}", "run/small/now?at={}", "run/small/cell?view={}&column={}"),
    *("run/small/cell?view=sql&q=select+1+as+a&column={}", "run/small/sql?q=select+'{}'+as+a"),
    *("run/small/page/step?views=step.figures&step={}", "run/small/page/step?views={}&step=1"),
    "run/small/page/overview?views=overview.loss&overview.loss.first={}",
    "run/small/page/overview?views=overview.latest&overview.latest.sort={}",
    "run/small/page/trajectory?views=trajectory.row&trajectory={}",
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_value_in_an_address_makes_the_server_fail(client: TestClient, address: str) -> None:
    for value in HOSTILE:
        answer = client.get(f"/api/{address.replace('{}', value)}", follow_redirects=False)
        assert answer.status_code in (200, 307, 400, 404), (value[:20], answer.text[:200])
        if answer.status_code in (400, 404):
            assert "\n" not in answer.json()["error"]


def sql(client: TestClient, query: str, path: str = "sql", **more: str) -> Any:
    return client.get(f"/api/run/small/{path}", params={"q": query, **more})


def test_the_console_pages_through_the_rows_of_any_query(client: TestClient) -> None:
    query = "select trajectory_id from trajectories order by seq"
    first = sql(client, query).json()["views"]["sql"]
    assert (len(first["rows"]), first["more"]) == (44, False)
    later = sql(client, query, **{"sql.offset": "40"}).json()["views"]["sql"]
    assert later["rows"] == first["rows"][40:]


@pytest.mark.parametrize(
    "query",
    ["", "drop table steps", "select * from read_csv('/etc/passwd')", "select x from steps", "a'b"],
)
def test_the_console_refuses_what_query_refuses(client: TestClient, query: str) -> None:
    for path in ("sql", "sql.csv"):
        answer = sql(client, query, path)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("query: ")


def test_csv_has_no_formulas_and_lists_as_json(client: TestClient) -> None:
    query = "select '=1+1' as f, 'a,b' as t, turns, -1 as n from trajectories limit 1"
    answer = sql(client, query, "sql.csv")
    assert answer.headers["content-disposition"].startswith("attachment")
    (row,) = pl.read_csv(answer.content).to_dicts()
    assert (row["f"], row["t"], row["n"]) == ("'=1+1", "a,b", -1)
    assert json.loads(row["turns"])[0]["observation"].startswith("SFFF")


def test_a_long_text_is_cut_until_it_is_opened(client: TestClient) -> None:
    query = f"select '{'x' * 1000}' as t, step from steps order by step"
    cut = sql(client, query).json()["views"]["sql"]["rows"][2][0]
    assert (len(cut["cut"]), cut["length"]) == (600, 1000)
    whole = sql(client, query, "cell", view="sql", column="t", offset="2").json()
    assert whole == {"value": "x" * 1000}
    assert sql(client, query, "cell", view="sql", column="u", offset="2").status_code == 400


def test_a_chart_that_is_zoomed_asks_for_its_own_range(client: TestClient) -> None:
    address = "/api/run/small/page/overview?overview.loss.first=2&overview.loss.last=3"
    answer = client.get(address).json()
    assert [row["step"] for row in rows(answer, "overview.loss")] == [2, 3]
    assert len(rows(answer, "overview.reward")) == 4


def test_what_became_of_the_attempts_is_counted(client: TestClient) -> None:
    waste = rows(client.get("/api/run/small/page/overview").json(), "overview.waste")
    assert {row["outcome"]: row["attempts"] for row in waste} == {
        "completed": 32, "failed": 4, "redundant": 4, "stale": 4,
    }  # fmt: skip
    assert sum(row["share"] for row in waste) == pytest.approx(1)


def test_the_console_explains_every_column(client: TestClient) -> None:
    tables = client.get("/api/tables").json()
    assert set(tables) == set(TABLES)
    assert all(column["comment"] for columns in tables.values() for column in columns)


def test_an_image_that_the_run_does_not_have_is_an_error(client: TestClient) -> None:
    for name in ("0" * 64, "..%2f..%2frun.json", "x"):
        assert client.get(f"/api/run/small/image/{name}").status_code in (404, 500)


def test_now_tells_the_newest_row(client: TestClient, store: Path) -> None:
    newest = open_run(str(store / "small")).snapshot().seq
    assert client.get("/api/run/small/now").json() == {"cut": newest, "status": "finished"}


def test_every_view_of_every_page_can_be_read_of_an_empty_run(tmp_path: Path) -> None:
    small_run(tmp_path, "empty", steps=0)
    app = ui_app(RunCatalog([str(tmp_path / "empty")]), Readers.at("127.0.0.1", None))
    known = {"text": "x", "step": "1", "group": "g", "trajectory": "t"}
    with TestClient(app, base_url="http://localhost") as client:
        for page in PAGES:
            answer = client.get(f"/api/run/empty/page/{page}", params=known)
            assert answer.status_code == 200, answer.text


def test_the_whole_interface_is_small_and_names_no_other_server() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    for path in files:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
        assert "innerHTML" not in text, path
        assert "<script>" not in text, path
        assert "style=" not in text, path


def test_numbers_that_a_browser_cannot_hold_are_texts() -> None:
    from rollart_flow.ui.encoding import encode_value

    values = pl.DataFrame({"a": [float("nan"), float("inf")], "b": [2**53 + 1, -1]})
    assert [encode_value(value) for value in values["a"]] == ["nan", "inf"]
    assert [encode_value(value) for value in values["b"]] == [str(2**53 + 1), -1]
