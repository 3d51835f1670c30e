"""What the README says is true: its pipeline, its commands and its Python run here."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)

from rollart_flow import algorithms
from rollart_flow.algorithms.registry import CORRECTIONS, RECIPES
from rollart_flow.pipeline import load_pipeline
from rollart_flow.store import Run
from tests.cli.shell import rollart

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands(name: str) -> Iterator[list[str]]:
    """Words of each `rollart NAME ...` line of the README, after `rollart`."""
    for line in "\n".join(blocks("shell")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:2] == ["rollart", name]:
            yield words[1:]


@pytest.fixture
def mine(finished_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that is called as in the README, in the store that is meant by default."""
    shutil.copytree(finished_run.path, tmp_path / "mine")
    monkeypatch.setenv("ROLLART_STORE", str(tmp_path))
    monkeypatch.chdir(ROOT)
    return Run(str(tmp_path / "mine"))


def test_its_pipeline_is_the_one_that_the_demo_runs() -> None:
    (pipeline, *_) = blocks("python")
    assert pipeline == (ROOT / "pipelines" / "two_domains.py").read_text()
    assert len(pipeline.splitlines()) <= 40


def test_its_targets_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (\w+)", README)) - {"are"}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_run_and_fork_lines_are_understood() -> None:
    for words in (*commands("run"), *commands("fork")):
        changes = [word for word in words if "=" in word]
        file = next(word for word in words if word.endswith(".py"))
        overrides = dict(change.split("=", 1) for change in changes)
        assert load_pipeline(ROOT / file, overrides).overrides == overrides


def test_its_reading_commands_work_on_a_run(mine: Run) -> None:
    trajectory = mine.batch(step=2)["trajectory_id"][0].as_py()
    tried = 0
    for name in ("plan", "runs", "show", "query", "resume", "replay"):
        for words in commands(name):
            said = rollart(*[trajectory if word == "ID" else word for word in words])
            assert said.code == 0, (words, said.err)
            tried += 1
    assert tried >= 8


def test_its_composed_reward_can_be_built() -> None:
    (_, rewards, *_) = blocks("python")
    built: dict[str, Any] = {}
    exec(rewards, built)
    assert built["fn"].process[0].fn is built["judge"]


def test_its_recipes_are_all_there_are_and_can_be_called() -> None:
    recipes = {*RECIPES.names(), *CORRECTIONS.names()}
    (paragraph,) = [part for part in README.split("\n\n") if "made by a recipe" in part]
    words = set(re.findall(r"`(\w+)`", paragraph))
    assert words - {"steps", "mismatch_kl", "mismatch_ratio_max", "ess", "lags"} == recipes
    calls = re.findall(r"`(\w+\(.*?\))`", paragraph)
    assert len(calls) == 2
    made = {name: getattr(algorithms, name) for name in dir(algorithms)}
    for call in calls:
        assert isinstance(eval(call, made), algorithms.Algorithm)


def test_its_query_in_python_works_on_a_run(mine: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (_, _, query, *_) = blocks("python")
    exec(compile(query, "README.md", "exec"), {})
    staleness, rows, steps = (int(line) for line in capsys.readouterr().out.split())
    assert staleness <= 1
    assert rows == mine.batch(step=2).num_rows
    assert steps == 2


def test_its_scenario_is_the_one_of_the_file() -> None:
    (*_, scenario, _) = blocks("python")
    assert scenario == (ROOT / "pipelines" / "scenario.py").read_text()


def test_its_simulations_run(tmp_path: Path) -> None:
    simulations = list(commands("simulate"))
    assert len(simulations) == 6
    recorded = ROOT / "tests" / "simulation" / "data" / "two-domains"
    for words in simulations:
        here = [
            str(tmp_path / word) if word.endswith(".svg")
            else str(ROOT / word) if word.endswith(".py")
            else str(recorded) if word == "mine"
            else word
            for word in words
        ]  # fmt: skip
        said = rollart(*here, "--steps", "3" if "mine" in words else "1")
        assert said.code == 0, (words, said.err)
    assert (tmp_path / "eight.svg").exists()


def test_its_manifest_is_one_that_ray_understands() -> None:
    (text,) = blocks("yaml")
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    entry = shlex.split(job["spec"]["entrypoint"])
    assert entry[:2] == ["rollart", "run"]
    assert (ROOT / entry[2]).exists()
    cluster = {"metadata": {"name": "rollart", "namespace": "default"}}
    config = _derive_autoscaling_config_from_ray_cr(
        {**cluster, "spec": job["spec"]["rayClusterSpec"]}
    )
    pools = config["available_node_types"]
    assert pools["headgroup"]["resources"]["CPU"] == 4
    assert pools["h800"]["resources"]["H800"] == 8
    assert pools["h20"]["resources"]["H20"] == 8
    assert (
        f"ray[data]>={job['spec']['rayClusterSpec']['rayVersion'][:4]}"
        in (ROOT / "pyproject.toml").read_text()
    )
