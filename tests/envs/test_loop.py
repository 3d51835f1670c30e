"""An environment that a domain gives for the event loop: limits, errors, and a whole run of it."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollart_flow import runner
from rollart_flow.control.environment import AsyncEnvironment
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain, Info
from rollart_flow.envs.blocking import BlockingEnvironment
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError
from rollart_flow.pipeline import load_pipeline
from rollart_flow.pipeline.environments import check_environments
from rollart_flow.store import open_run
from rollart_flow.types import Split, Task
from tests.logged import Logged


class Awaiting:
    """Awaits before it answers; the payload and the action say how it goes wrong."""

    def __init__(self) -> None:
        self.closed = 0

    async def start(self) -> None:
        await asyncio.sleep(0)

    async def reset(self, seed: int, task: str) -> tuple[Any, Info]:
        await asyncio.sleep(0)
        return task, {}

    async def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        await asyncio.sleep(0)
        if action == "raise":
            raise KeyError("a\nb")
        if action == "late":
            raise TimeoutError("of its own")
        if action == "hang":
            await asyncio.Event().wait()
        if action == "nan":
            return "", float("nan"), True, False, {}
        return "", float("1" in action), True, False, {}

    async def close(self) -> None:
        self.closed += 1
        if self.closed > 1:
            raise OSError("closed twice")


@dataclass(frozen=True)
class AwaitingDomain(Domain):
    """Gives them."""

    name = "awaiting"
    environment = BlockingEnvironment

    def make_async(self) -> AsyncEnvironment:
        return Awaiting()

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        while True:
            yield Task("awaiting/1", self.name, "?")


@pytest.mark.parametrize(
    ("action", "kind", "said"),
    [
        ("raise", EnvironmentFailedError, r"^AwaitingDomain\.step: KeyError: 'a\\nb'$"),
        ("late", EnvironmentFailedError, "TimeoutError: of its own"),
        ("nan", EnvironmentFailedError, "the reward nan"),
        ("hang", EnvironmentTimeoutError, r"no answer within 0\.05 s; its connection is closed"),
    ],
)
def test_a_call_has_a_limit_and_its_errors_are_converted(
    action: str, kind: type[Exception], said: str
) -> None:
    async def test() -> None:
        environment = open_environment(AwaitingDomain(), timeout_s=0.05)
        assert (await environment.reset(1, "x"))[0] == "x"
        with pytest.raises(kind, match=said):
            await environment.step(action)

    asyncio.run(test())


def test_an_error_of_closing_is_only_logged(logged: Logged) -> None:
    async def test() -> None:
        environment = open_environment(AwaitingDomain())
        await environment.close()
        await environment.close()

    asyncio.run(test())
    assert "OSError: closed twice" in logged.text


def test_a_run_uses_it_and_the_plan_connects_to_it(tmp_path: Path) -> None:
    file = tmp_path / "awaiting.py"
    file.write_text(
        "from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train\n"
        "from rollart_flow.algorithms import grpo\n"
        "from tests.envs.test_loop import AwaitingDomain\n"
        "policy = Policy.tiny(hidden=32)\n"
        "scored = reward(rollout(tasks(AwaitingDomain(), group_size=4), policy, max_tokens=4))\n"
        "steps = train(buffer(scored, batch_size=8, alpha=1), policy, grpo(), steps=2)\n"
        "pipeline = Pipeline('awaiting', steps)\n"
    )
    loaded = load_pipeline(file, {})
    check_environments(loaded.pipeline, file)
    run = open_run(runner.run(loaded, store=str(tmp_path), name="a", executor="inline").uri)
    assert run.steps.collect().height == 2
    assert set(run.trajectories.collect()["env_version"]) == {"1"}
