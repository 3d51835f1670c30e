"""The list of runs and the comparison of some of them."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rollart_flow.errors import RunNotFoundError
from rollart_flow.store import RunInfo
from rollart_flow.store.info import Parent
from rollart_flow.ui.app import ui_app
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.guard import Readers
from rollart_flow.views.comparison import differing_settings
from tests.runs import small_run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("several"))
    small_run(folder, "long")
    small_run(folder, "short", steps=2)
    return folder


def client(catalog: RunCatalog) -> TestClient:
    return TestClient(ui_app(catalog, Readers.at("127.0.0.1", None)), base_url="http://localhost")


def test_runs_are_compared_by_steps_tokens_and_time(store: Path) -> None:
    answer = client(RunCatalog(store=str(store))).get("/api/compare?run=long&run=short").json()
    assert list(answer["views"]) == ["long", "short"]
    curves = answer["views"]["long"]["comparison.curves"]
    names = [column["name"] for column in curves["columns"]]
    by_step = {row[0]: dict(zip(names, row, strict=True)) for row in curves["rows"]}
    assert [by_step[step]["tokens"] for step in (1, 2, 3, 4)] == [112, 224, 336, 448]
    assert [by_step[step]["seconds"] for step in (1, 2, 3, 4)] == [2, 4, 6, 8]
    assert len(answer["views"]["short"]["comparison.curves"]["rows"]) == 2


@pytest.mark.parametrize("names", [(), ("long",), ("long", "long"), tuple("abcde")])
def test_two_to_four_different_runs_are_compared(store: Path, names: tuple[str, ...]) -> None:
    answer = client(RunCatalog(store=str(store))).get("/api/compare", params={"run": list(names)})
    assert answer.status_code == 400
    assert "two to 4" in answer.json()["error"]


def test_only_settings_that_differ_are_shown() -> None:
    nodes = {"buffer": {"alpha": 1, "schedule": {}}, "train": {"lr": 0.1}}
    first = RunInfo("a", "p", 0, {"nodes": nodes})
    fork = RunInfo("b", "p", 0, {"nodes": {**nodes, "train": {"lr": 0.2}}}, parent=Parent("a", 3))
    assert differing_settings([first, fork]) == [
        ("forked from", ["-", '"a step 3"']),
        ("nodes.train.lr", ["0.1", "0.2"]),
    ]


def test_a_run_is_named_in_commands_as_its_user_named_it(store: Path) -> None:
    path = str(store / "long")
    assert RunCatalog([path]).words("long") == [path]
    assert RunCatalog(["long"], str(store)).words("long") == ["long", "--store", str(store)]
    about = client(RunCatalog(store=str(store))).get("/api/run/short/about").json()
    assert about["handle"] == ["short", "--store", str(store)]


def test_chosen_runs_are_the_only_ones(store: Path, tmp_path: Path) -> None:
    small_run(tmp_path, "long", steps=1)
    catalog = RunCatalog([str(store / "long"), str(tmp_path / "long")])
    assert list(catalog.addresses()) == ["long", "long~2"]
    assert [run["steps"] for run in client(catalog).get("/api/runs").json()["runs"]] == [1, 4]
    assert client(catalog).get("/api/run/short/about").status_code == 404
    with pytest.raises(RunNotFoundError):
        RunCatalog(["nothing"], str(store))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "..\\x", ".hidden", "a\0", "a" * 5000])
def test_a_name_leads_to_no_folder_outside_the_store(store: Path, name: str) -> None:
    with pytest.raises(RunNotFoundError):
        RunCatalog(store=str(store / "long")).open(name)
