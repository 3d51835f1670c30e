"""`rollart plan` finds what a run would refuse: environments, tasks, and the policy's folder."""

import json
from pathlib import Path

import pytest

from rollart_flow.models.tokenizer import tiny_tokenizer_files
from tests.cli.shell import Said, rollart

FILE = """
from dataclasses import dataclass
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Domain, Environment
from rollart_flow.types import Task


class CoinEnvironment(Environment):
    {environment}

    def __init__(self):
        {made}

    def reset(self, seed, task):
        {reset}

    def step(self, action):
        return "", 1.0, True, False, {{}}


@dataclass(frozen=True)
class Coin(Domain):
    name = "coin"
    environment = CoinEnvironment

    def tasks(self, split, seed):
        {tasks}


policy = {policy}
batches = buffer(reward(rollout(tasks(Coin(), group_size=2), policy)), batch_size=4)
pipeline = Pipeline("coin", train(batches, policy, grpo(), steps=1))
"""
GOOD = {
    "environment": "inline = False",
    "made": "pass",
    "reset": "return 'toss', {}",
    "tasks": "yield Task('coin/1', 'coin', '1')",
    "policy": "Policy.tiny()",
}


def planned(folder: Path, **wrong: str) -> Said:
    (folder / "coin.py").write_text(FILE.format(**GOOD | wrong))
    return rollart("plan", str(folder / "coin.py"))


def test_a_pipeline_that_can_run_is_planned(tmp_path: Path) -> None:
    assert planned(tmp_path).code == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"made": "raise ValueError('no game')"},
            "domain 'coin': CoinEnvironment.make: ValueError: no game",
        ),
        ({"reset": "raise ValueError('no map')"}, "CoinEnvironment.reset: ValueError: no map"),
        ({"reset": "return 'toss'"}, "CoinEnvironment.reset returned"),
        ({"tasks": "raise ValueError('no file')"}, "domain 'coin': tasks: ValueError: no file"),
        ({"tasks": "return iter(())"}, "domain 'coin': tasks: it gives no training tasks"),
        ({"policy": "Policy.from_pretrained('/no/such/model')"}, "/no/such/model"),
    ],
)
def test_what_a_run_would_refuse_is_one_line(
    wrong: dict[str, str], message: str, tmp_path: Path
) -> None:
    said = planned(tmp_path, **wrong)
    assert said.code in (1, 2)
    (line,) = said.err.splitlines()
    assert message in line


def test_a_model_that_nobody_knows_is_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="it knows the architectures of models")
    config = {"architectures": ["NewForCausalLM"], "model_type": "new"}
    for name, text in {**tiny_tokenizer_files((), 64), "config.json": json.dumps(config)}.items():
        (tmp_path / name).write_text(text)
    said = planned(
        tmp_path, policy=f"Policy.from_pretrained({str(tmp_path)!r}, engine='transformers')"
    )
    assert said.code == 2
    (line,) = said.err.splitlines()
    assert "does not know model_type 'new'" in line


def test_without_environments_nothing_of_them_is_called(tmp_path: Path) -> None:
    planned(tmp_path, reset="raise ValueError('no map')")
    assert rollart("plan", str(tmp_path / "coin.py"), "--no-environments").code == 0


def test_a_warm_start_of_a_domain_with_tools_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    said = planned(tmp_path, policy="Policy.tiny(warm_start=5)", environment="converses = True")
    assert said.code == 2
    assert "domain 'coin' converses, and a format warm start teaches actions of text" in said.err
