"""`make bench`: every benchmark leaves a row, whatever happens to it."""

import json
from pathlib import Path

import pytest

from tests.benchmarks import run

FAKES = {
    "dies": "import os\ndef run(): os._exit(3)",
    "fails": """
from tests.benchmarks.records import record
def run():
    yield record("fails: first", 1, "s")
    raise ValueError("bad figure\\nand more")
""",
    "hangs": "import threading\ndef run(): threading.Event().wait()",
    "lacks": """
from tests.benchmarks.records import CannotRunError
def run(): raise CannotRunError("apt install libibverbs1")
""",
    "misses_a_package": "import no_such_package\ndef run(): return []",
    "passes": """
from tests.benchmarks.records import record
def run(): return [record("passes: speed", 2.0, "x", at_least=1.5, peer="1 s")]
""",
}


MEETS = """
import time
from pathlib import Path
from tests.benchmarks.records import record
def run():
    Path("{name}").touch()
    while not Path("{other}").exists():
        time.sleep(0.001)
    return [record("met {other}", 1.0, "")]
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of benchmarks, found from the current folder."""
    package = tmp_path / "fake_benchmarks"
    package.mkdir()
    for name, code in FAKES.items():
        (package / f"bench_{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return package.name


def rows() -> list[tuple[str, bool | None, str | None]]:
    return [
        (row["name"], row["holds"], row["skipped"])
        for row in json.loads(Path("bench.json").read_text())
    ]


def test_a_benchmark_that_ends_early_is_a_row_and_the_others_go_on(fakes: str) -> None:
    assert run.main([], fakes, {"hangs": 0.1}) == 1
    assert rows() == [
        ("dies", False, "its process ended with 3"),
        ("fails: first", None, None),
        ("fails", False, "ValueError: bad figure"),
        ("hangs", False, "not finished after 0.1 s"),
        ("lacks", None, "cannot run here: apt install libibverbs1"),
        ("misses_a_package", None, "cannot run here: No module named 'no_such_package'"),
        ("passes: speed", True, None),
    ]


def test_what_cannot_run_here_does_not_fail_the_command(fakes: str) -> None:
    assert run.main(["lacks", "passes"], fakes) == 0
    (*_, figure) = json.loads(Path("bench.json").read_text())
    assert figure.pop("seconds") >= 0
    assert figure == {
        "name": "passes: speed", "value": 2.0, "unit": "x", "goal": ">= 1.5", "holds": True,
        "peer": "1 s", "skipped": None,
    }  # fmt: skip


def test_what_no_time_is_left_for_is_a_row(fakes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TOTAL_S", 0.0)
    assert run.main(["passes"], fakes) == 0
    assert rows() == [("passes", None, "not started: all benchmarks together have 0 s")]


def test_what_is_cut_short_since_no_time_is_left_is_a_row_that_fails_nothing(
    fakes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "TOTAL_S", 0.1)
    assert run.main(["hangs"], fakes) == 0
    assert rows() == [("hangs", None, "not finished: all benchmarks together have 0.1 s")]


def test_the_longest_benchmarks_come_last(fakes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TOTAL_S", 0.0)
    run.main([], fakes, {"dies": run.LIMIT_S + 2, "hangs": run.LIMIT_S + 1, "lacks": 0.1})
    assert [name for name, *_ in rows()] == [
        "fails", "lacks", "misses_a_package", "passes", "hangs", "dies",
    ]  # fmt: skip


def test_two_untimed_benchmarks_run_at_once_before_all_others(
    fakes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two each wait for the other one's file."""
    monkeypatch.setattr(run, "UNTIMED", frozenset(("meets_one", "meets_two")))
    for name, other in (("one", "two"), ("two", "one")):
        Path(fakes, f"bench_meets_{name}.py").write_text(MEETS.format(name=name, other=other))
    assert run.main(["passes", "meets_one", "meets_two"], fakes) == 0
    found = [name for name, *_ in rows()]
    assert (set(found[:2]), found[2]) == ({"met one", "met two"}, "passes: speed")


def test_an_unknown_name_is_refused(fakes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["speed"], fakes) == 2
    assert capsys.readouterr().err.startswith("error: no benchmark 'speed'; there are dies, fails")
