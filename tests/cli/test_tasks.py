"""`rollart tasks check`: what it says, what it keeps, and what a run makes of it."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.envs.registry import ENVIRONMENTS
from rollart_flow.pipeline.loading import load_pipeline
from rollart_flow.store import open_run
from rollart_flow.store.admissions import AdmissionTable
from tests.checking.doors import KINDS, write_pipeline
from tests.cli.shell import COMMAND, refused, rollart

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLART_STORE", str(tmp_path / "store"))


def test_it_lists_all_tasks_and_fails_if_one_is_not_admitted(tmp_path: Path) -> None:
    said = rollart("tasks", "check", write_pipeline(tmp_path), "--json", "--workers", "2")
    assert said.code == 1
    rows = json.loads(said.out)
    assert [row["task_id"] for row in rows] == sorted(KINDS)
    assert rows[1] == {
        "task_id": "good", "gold": True, "noop": True, "cheat": True, "flaky": False,
        "seconds": rows[1]["seconds"], "admitted": True, "reason": None,
    }  # fmt: skip
    assert AdmissionTable().newest().height == len(KINDS)


def test_what_has_not_changed_is_not_checked_again(tmp_path: Path) -> None:
    path = write_pipeline(tmp_path, "only=('good', 'also')")
    assert rollart("tasks", "check", path).code == 0
    said = rollart("tasks", "check", path)
    assert said.code == 0
    assert "2 of 2 tasks are admitted, 2 of them checked before" in said.out
    assert AdmissionTable()._rows().height == 2
    assert rollart("tasks", "check", path, "--again", "--limit", "1").code == 0
    assert AdmissionTable()._rows().height == 3
    assert AdmissionTable().newest().height == 2


def test_a_run_takes_admitted_tasks_only_and_has_their_checks(tmp_path: Path) -> None:
    path = write_pipeline(tmp_path)
    line = refused(rollart("run", path, "--executor", "inline"))
    assert "no task of domain 'doors' is admitted" in line
    assert f"run `rollart tasks check {path}` first, or set tasks.admitted=any" in line
    rollart("tasks", "check", path)
    uri = runner.run(load_pipeline(path), executor="inline").uri
    found = open_run(uri)
    assert set(found.trajectories.collect()["task_id"]) == {"also", "good"}
    assert found.admissions.collect().height == len(KINDS)
    refusals = found.events.filter(pl.col("kind") == "refuse").collect()
    assert sum(json.loads(each)["tasks"] for each in refusals["detail"]) == len(KINDS) - 2
    judged = found.verdicts.collect()
    assert judged.height == found.trajectories.collect().height
    assert set(judged["key"]) == {"opens"}
    assert set(judged["verifier"]) == {"door/1"}


def test_an_interrupt_keeps_what_is_checked(tmp_path: Path) -> None:
    path = write_pipeline(tmp_path)
    check = [*COMMAND, "tasks", "check", path, "--repeat", "1", "--workers", "1"]
    program = f"""
import os, signal, sys
from rollart_flow.checking import recorded_checks
from rollart_flow.cli import main

inner = recorded_checks.check_tasks

async def check_tasks(tasks, settings):
    checks = inner(tasks, settings)
    for _ in range(2):
        yield await anext(checks)
    os.kill(os.getpid(), signal.SIGINT)
    async for each in checks:
        yield each

recorded_checks.check_tasks = check_tasks
sys.exit(main({check[len(COMMAND) :]!r}))
"""
    done = subprocess.run(
        [COMMAND[0], "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 128 + signal.SIGINT
    assert "interrupted; 2 of 6 tasks are checked; the same command goes on" in done.stderr
    assert AdmissionTable().newest().height == 2


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_folder_of_harbor_tasks_is_checked_in_boxes(tmp_path: Path) -> None:
    for name, word in (("right", "hello"), ("wrong", "bye")):
        written = {
            "task.toml": f'schema_version = "1.4"\n[task]\nname = "tests/{name}"\n',
            "instruction.md": "Write hello into hello.txt.",
            "environment/files": "",
            "tests/test.sh": "mkdir -p /logs/verifier; grep -c hello hello.txt > "
            "/logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
            "solution/solve.sh": f"echo {word} > hello.txt\n",
        }
        for path, text in written.items():
            (tmp_path / "tasks" / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "tasks" / name / path).write_text(text)
    said = rollart("tasks", "check", str(tmp_path / "tasks"), "--json", "--repeat", "1")
    assert said.code == 1, said.err
    rows = [
        {name: row[name] for name in ("task_id", "gold", "noop", "cheat", "admitted")}
        for row in json.loads(said.out)
    ]
    assert rows == [
        {"task_id": "harbor/tests/right", "gold": True, "noop": True, "cheat": True,
         "admitted": True},
        {"task_id": "harbor/tests/wrong", "gold": False, "noop": True, "cheat": True,
         "admitted": False},
    ]  # fmt: skip


def test_a_domain_in_text_form_is_checked() -> None:
    said = rollart("tasks", "check", "frozenlake(size=4)", "--json", "--limit", "3")
    assert said.code == 0
    (row,) = json.loads(said.out)
    assert (row["gold"], row["noop"], row["admitted"]) == (None, True, True)
    assert rollart("tasks", "check", "frozenlake", "--json", "--limit", "1").code == 0
    said = rollart("tasks", "check", "gymnasium('Taxi-v4')", "--json", "--limit", "2")
    rows = json.loads(said.out)
    assert [(row["gold"], row["noop"], row["admitted"]) for row in rows] == [(True, True, True)] * 2


def test_wrong_use_is_one_line(tmp_path: Path) -> None:
    path = write_pipeline(tmp_path)
    assert "no domain 'windows'" in refused(rollart("tasks", "check", path, "--domain", "windows"))
    assert "give --judge URL" in refused(rollart("tasks", "check", path, "--judge-model", "m"))
    assert "no such pipeline file" in refused(rollart("tasks", "check", str(tmp_path / "no.py")))
    line = refused(rollart("tasks", "check", "gymnasium"))
    assert "makes no tasks without settings" in line
    assert "as in 'gymnasium(...)'" in line
    assert "no environment; there are alfworld, " in refused(rollart("tasks", "check", "lake"))
    empty = tmp_path / "empty"
    empty.mkdir()
    line = refused(rollart("tasks", "check", str(empty)))
    assert "no domain reads this folder as a folder of tasks" in line
    assert all(ENVIRONMENTS.load(name).of_folder(empty) is None for name in ENVIRONMENTS.names())
