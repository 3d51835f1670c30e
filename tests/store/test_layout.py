"""Which run a word means, and where its parts lie."""

from pathlib import Path

import pytest

from rollart_flow.errors import RunNotFoundError, SettingsError, StoreError
from rollart_flow.store import layout, list_runs, new_run_uri, open_run, resolve, store_uri
from rollart_flow.store.info import write_info
from tests.runs import info


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two runs and a folder that is none."""
    monkeypatch.delenv(layout.STORE_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("two-domains", "frozen-lake"):
        write_info(str(tmp_path / "runs" / name), info(name))
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


def test_the_store_is_the_given_one_or_the_variable_or_runs(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store_uri() == str(store)
    monkeypatch.setenv(layout.STORE_VARIABLE, "s3://bucket/runs/")
    assert store_uri() == "s3://bucket/runs"
    assert store_uri(store) == str(store)
    assert new_run_uri("x") == "s3://bucket/runs/x"


def test_a_run_is_found_by_name_path_or_uri(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = str(store / "two-domains")
    for word in ("two-domains", "runs/two-domains", expected, f"file://{expected}", f"{expected}/"):
        assert resolve(word) == expected
    assert open_run(store / "two-domains").info.name == "two-domains"
    monkeypatch.chdir(store)
    assert resolve("two-domains", store="elsewhere") == expected


def test_an_unknown_run_suggests_what_is_near(store: Path) -> None:
    with pytest.raises(
        RunNotFoundError, match=r"no run 'two-domain' in .*/runs; did you mean two-"
    ):
        resolve("two-domain")
    with pytest.raises(RunNotFoundError, match=r"no run 'zzz' in .*; it has 2 runs"):
        resolve("zzz")
    with pytest.raises(RunNotFoundError, match=r"no run at .*runs/notes: there is no run\.json"):
        resolve(store / "notes")
    with pytest.raises(RunNotFoundError, match="no run '' in"):
        resolve("")


def test_runs_are_listed_oldest_first(store: Path) -> None:
    assert [(Path(uri).name, found.name) for uri, found in list_runs()] == [
        ("two-domains", "two-domains"),
        ("frozen-lake", "frozen-lake"),
    ]
    assert list_runs(store / "nothing") == []


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "s3://x"])
def test_a_name_must_be_that_of_a_folder(name: str) -> None:
    with pytest.raises(SettingsError, match="run name"):
        new_run_uri(name)


@pytest.mark.parametrize("name", ["100%25", "a\\b", "a\nb"])
def test_a_name_that_tables_cannot_have_is_refused_at_once(tmp_path: Path, name: str) -> None:
    for store, run in ((str(tmp_path), name), (str(tmp_path / name), "a"), ("s3://bucket/x", name)):
        with pytest.raises(SettingsError, match="cannot stand in the address of a store") as caught:
            new_run_uri(run, store)
        assert "\n" not in str(caught.value)


def test_the_pipeline_is_kept_with_its_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"has no pipeline\.py"):
        layout.read_pipeline(str(tmp_path))
    layout.write_pipeline(str(tmp_path), 'pipeline = "ä"\n')
    assert layout.read_pipeline(str(tmp_path)) == 'pipeline = "ä"\n'
    assert layout.table_uri("s3://b/a", "steps") == "s3://b/a/tables/steps"
    assert layout.weights_uri("/r") == "/r/weights"
    assert layout.checkpoints_uri("/r") == "/r/checkpoints"
    assert layout.policy_uri("/r") == "/r/policy"
