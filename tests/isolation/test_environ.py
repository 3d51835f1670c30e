"""A process of an environment or a reward gets the variables that hold no key, and those named."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest

from rollart_flow import Secret
from rollart_flow.envs import Domain, Environment
from rollart_flow.envs.base import Info
from rollart_flow.envs.process import ProcessEnvironment, WarmProcesses
from rollart_flow.isolation.process import Isolated
from rollart_flow.rewards.score import Scorer
from rollart_flow.types import Split, Task, Trajectory
from tests.builders import TRAJECTORY

KEYS = {"AWS_SECRET_ACCESS_KEY": "aws", "JUDGE_API_KEY": "judge", "RAY_AUTH_TOKEN": "ray"}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**KEYS, "LC_TIME": "C", "OMP_NUM_THREADS": "3", "LEVEL": "hard"}.items():
        monkeypatch.setenv(name, value)


class Telling:
    """Answers its variables."""

    def __call__(self, request: Mapping[str, Any]) -> object:
        return dict(os.environ)


def test_keys_stay_in_the_process_that_has_them() -> None:
    async def main() -> dict[str, str]:
        process = await Isolated.start(f"{__name__}:Telling", ("LEVEL",))
        found = cast(dict[str, str], await process.call({}))
        await process.kill()
        return found

    found = asyncio.run(main())
    assert not found.keys() & KEYS.keys()
    assert found.items() >= {"LC_TIME": "C", "OMP_NUM_THREADS": "3", "LEVEL": "hard"}.items()
    assert found["PATH"] == os.environ["PATH"]


class PrintingEnvironment(Environment):
    """Prints the variables, and a key, as an agent's `printenv` would."""

    def __init__(self, key: Secret | None) -> None:
        self.key = key

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        used = "" if self.key is None else self.key.reveal()
        return " ".join([*sorted(os.environ), used]), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return "", 0.0, True, False, {}


@dataclass(frozen=True)
class Printing(Domain):
    name: ClassVar[str] = "printing"
    environment: ClassVar[type[Environment]] = PrintingEnvironment

    environ: tuple[str, ...] = ()
    key: Secret | None = None

    def make(self) -> Environment:
        return PrintingEnvironment(self.key)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return iter((Task("only", self.name),))


def printed(domain: Printing, warm: WarmProcesses) -> str:
    async def main() -> str:
        environment = ProcessEnvironment(domain, 60.0, processes=warm)
        observation, _ = await environment.reset(0, "only")
        await environment.close()
        assert isinstance(observation, str)
        return observation

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("domain", "more"),
    [
        (Printing(), set[str]()),
        (Printing(environ=("LEVEL",)), {"LEVEL"}),
        (Printing(key=Secret.from_env("JUDGE_API_KEY")), {"JUDGE_API_KEY"}),
    ],
)
def test_an_environment_gets_what_its_domain_names(domain: Printing, more: set[str]) -> None:
    names = set(printed(domain, WarmProcesses(keep=0)).split())
    assert names & {*KEYS, "LEVEL"} == more
    assert ("***" in names) == (domain.key is not None)
    assert KEYS["JUDGE_API_KEY"] not in names


def keys_of(trajectory: Trajectory) -> tuple[float, dict[str, float]]:
    return 0.0, {name: 1.0 for name in os.environ if name in {*KEYS, "LEVEL"}}


def test_a_reward_gets_what_its_node_names() -> None:
    async def parts(*environ: str) -> Mapping[str, float] | None:
        scorer = Scorer(keys_of, environ=environ)
        verdict = await scorer.verdict(TRAJECTORY, 60.0)
        await scorer.close()
        return verdict.parts

    assert not asyncio.run(parts())
    assert asyncio.run(parts("LEVEL")) == {"LEVEL": 1.0}
