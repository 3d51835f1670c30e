"""What every command shares: arguments, exit codes, and errors of one line."""

import json
from pathlib import Path

import pytest

from tests.cli.shell import refused, rollart
from tests.local_ray import SHARED_RAY
from tests.runs import small_run

TWO_DOMAINS = str(Path(__file__).parents[2] / "pipelines" / "two_domains.py")


def test_plan_draws_the_graph_and_says_what_runs_where() -> None:
    said = rollart("plan", TWO_DOMAINS)
    assert said.code == 0
    assert "tasks ──▶ rollout ──▶ reward ──▶ buffer ──▶ train" in said.out
    assert "policy versions" in said.out
    assert "evaluate ◀──" in said.out
    assert "H800" in said.out
    assert "else CPU" in said.out


def test_plan_says_where_no_cluster_is() -> None:
    SHARED_RAY.end()  # a process that is connected asks its own cluster
    line = refused(rollart("plan", TWO_DOMAINS, "--address", "127.0.0.1:1"), code=1)
    assert "there is no Ray cluster at 127.0.0.1:1" in line


def test_plan_is_json_and_takes_overrides() -> None:
    plan = json.loads(rollart("plan", TWO_DOMAINS, "-s", "steps=7", "-s", "alpha=3", "--json").out)
    settings = {stage["node"]: stage["settings"] for stage in plan["stages"]}
    assert "7 steps" in settings["train"]
    assert "3 versions" in settings["buffer"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "none.py"), "none.py: no such pipeline file"),
        (("run", "none.py"), "none.py: no such pipeline file"),
        (("run", TWO_DOMAINS, "-s", "alpa=1"), "no setting 'alpa' (did you mean buffer.alpha?)"),
        (("run", TWO_DOMAINS, "-s", "alpha"), "-s 'alpha' is not key=value"),
        (("plan", TWO_DOMAINS, "-s", "group_size=0"), "tasks.group_size should be greater"),
        (("plan",), "Missing argument 'FILE'"),
        (("plan", TWO_DOMAINS, "--nope"), "No such option: --nope"),
        (("nope",), "No such command 'nope'"),
        (("fork", "a", TWO_DOMAINS), "Missing option '--step'"),
        (("replay", "a", "--step", "0"), "Invalid value for '--step'"),
        (("replay", "a"), "replay takes one of --step N, --trajectory ID and --exchanges"),
        (("replay", "a", "--step", "1", "--trajectory", "b"), "replay takes one of"),
    ],
)
def test_wrong_use_is_exit_code_2_and_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLART_STORE", str(tmp_path))
    assert message in refused(rollart(*arguments))


def test_a_typo_in_a_pipeline_file_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from rollart_flow import Pipeline\n\npipeline = Pipelin('x')\n")
    line = refused(rollart("run", str(path)))
    assert line == f"{path}:3: NameError: name 'Pipelin' is not defined"


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    small_run(tmp_path, "mine", steps=0)
    said = rollart("run", TWO_DOMAINS, "--store", str(tmp_path), "--name", "mine")
    assert said.code == 2
    assert "there is a run at" in said.err


def test_alone_it_lists_the_commands() -> None:
    said = rollart()
    assert said.code == 0
    for command in (
        "run", "resume", "fork", "plan", "runs", "show", "query", "redteam", "replay", "simulate",
        "doctor",
    ):  # fmt: skip
        assert f"  {command} " in said.out


def test_the_traceback_is_shown_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLART_TRACEBACK", "1")
    said = rollart("plan", "none.py")
    assert "Traceback" in said.err
    assert said.err.splitlines()[-1] == "error: none.py: no such pipeline file"


def test_a_bug_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("rollart_flow.pipeline.dag.make_plan", broken)
    line = refused(rollart("plan", TWO_DOMAINS), code=1)
    assert line.startswith("ZeroDivisionError: two lines (this is a bug; `rollart --verbose`")


UNMADE = """
from dataclasses import dataclass
from typing import ClassVar

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs.base import Domain, Environment


class Lake(Environment):
    def __init__(self):
        <make>

    def reset(self, seed, task):
        return "", {}

    def step(self, action):
        return "", 0.0, True, False, {}


@dataclass(frozen=True)
class Lakes(Domain):
    name: ClassVar[str] = "lakes"
    environment: ClassVar[type[Environment]] = Lake

    def tasks(self, split, seed):
        return iter(())


policy = Policy.tiny()
batches = buffer(reward(rollout(tasks(Lakes(), group_size=4), policy)), batch_size=8, alpha=1)
pipeline = Pipeline("lakes", train(batches, policy, grpo(), steps=1))
"""


def test_plan_says_which_environment_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lakes.py"
    file.write_text(UNMADE.replace("<make>", 'raise OSError("no map\\nof the lake")'))
    line = refused(rollart("plan", str(file)), code=1)
    assert line == "domain 'lakes': Lake.make: OSError: no map of the lake"
    assert rollart("plan", str(file), "--no-environments").code == 0
    monkeypatch.setattr("rollart_flow.pipeline.environments._MAKE_S", 2.0)
    file.write_text(UNMADE.replace("<make>", "import time; time.sleep(3600)"))
    line = refused(rollart("plan", str(file)), code=1)
    assert line.startswith("no environment of domain 'lakes' was made within 2 s")


def test_plan_refuses_a_warm_start_without_example_actions(tmp_path: Path) -> None:
    file = tmp_path / "lakes.py"
    file.write_text(UNMADE.replace("<make>", "pass"))
    line = refused(rollart("plan", str(file), "-s", "warm_start=3"))
    assert line.startswith("domain 'lakes' has no example_action")


def test_verbose_shows_the_traceback_besides_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLART_TRACEBACK", "")  # restored after the test
    said = rollart("--verbose", "show", "none", "--store", str(tmp_path))
    assert "Traceback (most recent call last)" in said.err
    assert said.err.splitlines()[-1].startswith("error: no run 'none'")
