"""A process for a user's environment or reward loads what their file needs, and nothing heavy."""

import asyncio
import json
from pathlib import Path

import pytest

from rollart_flow.envs.process import ProcessEnvironment
from rollart_flow.pipeline.loading import load_source
from rollart_flow.rewards.score import Scorer
from tests.rewards.test_score import TRAJECTORY

HEAVY = {"polars", "deltalake", "numpy", "pyarrow", "ray", "torch"}
PIPELINE = '''"""An environment and a reward that tell which modules their process has loaded."""

import json
import sys
from dataclasses import dataclass
<imports>
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Domain, Environment
from rollart_flow.types import Task


class TellingEnvironment(Environment):
    version = "telling/1"

    def reset(self, seed, task):
        return json.dumps(list(sys.modules)), {}

    def step(self, action):
        return "", 0.0, True, False, {}


@dataclass(frozen=True)
class Telling(Domain):
    name = "telling"
    environment = TellingEnvironment

    def make(self):
        return TellingEnvironment()

    def tasks(self, split, seed):
        return [Task("only", self.name)]

    def example_action(self, task, random):
        return ""


def tell(trajectory):
    return 0.0, dict.fromkeys(sys.modules, 1.0)


policy = Policy.tiny()
scored = reward(rollout(tasks(Telling(), group_size=2), policy), tell)
pipeline = Pipeline("telling", train(buffer(scored, batch_size=2), policy, grpo(), steps=1))
'''


def loaded_by_children(source: Path, imports: str = "") -> list[set[str]]:
    """Top-level modules of the environment's process, and of the reward's."""
    text = PIPELINE.replace("<imports>", imports)
    source.write_text(text)
    pipeline = load_source(text, source).pipeline
    (domain,) = pipeline.tasks.domains
    assert pipeline.reward is not None
    assert pipeline.reward.fn is not None
    scorer = Scorer(pipeline.reward.fn, source)

    async def ask() -> tuple[str, set[str]]:
        environment = ProcessEnvironment(domain, 60.0, source)
        observation, _ = await environment.reset(0, "only")
        await environment.close()
        verdict = await scorer.verdict(TRAJECTORY, 60.0)
        await scorer.close()
        assert isinstance(observation, str)
        assert verdict.parts is not None, verdict.error
        return observation, set(verdict.parts)

    observation, parts = asyncio.run(ask())
    return [{name.split(".")[0] for name in names} for names in (json.loads(observation), parts)]


def test_neither_loads_what_tables_and_tensors_need(tmp_path: Path) -> None:
    for loaded in loaded_by_children(tmp_path / "telling.py"):
        assert "rollart_flow" in loaded
        assert not loaded & HEAVY


@pytest.mark.parametrize("library", ["numpy", "polars"])
def test_both_load_what_the_users_file_imports(tmp_path: Path, library: str) -> None:
    for loaded in loaded_by_children(tmp_path / "telling.py", f"import {library}\n"):
        assert library in loaded
