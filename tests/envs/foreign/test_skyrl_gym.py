"""SkyRL-Gym in a process of an interpreter, with a package of our own that has its interface."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rollart_flow.envs import SkyRLGym
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.process import ProcessEnvironment, WarmProcesses
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError, SettingsError
from rollart_flow.types import Split
from tests.envs.test_process import gone

FAKES = str(Path(__file__).parent / "fakes")
ROWS: tuple[dict[str, Any], ...] = (
    {"id": "seven", "prompt": [{"role": "user", "content": "Guess."}], "number": 7},
)


def guessing(**settings: Any) -> SkyRLGym:
    given = {"rows": ROWS, "folder": FAKES, "entry_point": "guessing:Guess", **settings}
    return SkyRLGym("guess", python=sys.executable, **given)


def run(
    test: Callable[[ProcessEnvironment], Awaitable[None]], timeout_s: float = 60.0, **settings: Any
) -> None:
    async def body() -> None:
        environment = open_environment(guessing(**settings), timeout_s=timeout_s, isolated=False)
        assert isinstance(environment, ProcessEnvironment)
        try:
            await environment.reset(0, next(guessing().tasks(Split.EVALUATION, 0)).payload)
            await test(environment)
        finally:
            await environment.close()

    asyncio.run(body())


def test_an_episode_gets_the_row_and_its_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUESS", "yes")

    async def test(environment: ProcessEnvironment) -> None:
        assert environment.tools is None
        shown = await environment.step("show")
        assert shown[0][0].text == "{'a': 1} ['id', 'number'] yes"  # type: ignore[index,union-attr]
        answer = await environment.step("7")
        assert answer[:4] == ("", 1.0, True, False)
        assert answer.info == {
            "metadata": {"acc": True}, "metrics": {"turns": 2}, "success": True
        }  # fmt: skip

    run(test, config={"a": 1}, success="acc", environ=("GUESS",))


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("raise", r"SkyRLGymEnvironment\.step: ValueError: a b$"),
        ("exit", "ended with exit status 3"),
        ("nothing", "shows no message, though the episode goes on"),
        ("image", "images are not taken"),
        ("nan", "the reward nan"),
    ],
)
def test_what_goes_wrong_is_one_line(action: str, said: str) -> None:
    async def test(environment: ProcessEnvironment) -> None:
        with pytest.raises(EnvironmentFailedError, match=said) as raised:
            await environment.step(action)
        assert "\n" not in str(raised.value)

    run(test)


def test_one_that_hangs_is_killed() -> None:
    async def test(environment: ProcessEnvironment) -> None:
        with pytest.raises(EnvironmentTimeoutError, match="no answer within 2 s"):
            await environment.step("hang")

    run(test, timeout_s=2.0)


def test_what_it_starts_ends_with_it() -> None:
    found: list[int] = []

    async def test(environment: ProcessEnvironment) -> None:
        found.append(int(cast(Any, await environment.step("fork"))[0][0].text))

    run(test)
    assert gone(found[0])


def test_a_process_is_kept_for_the_next_episode() -> None:
    async def test() -> None:
        processes = WarmProcesses(keep=1)
        task = next(guessing().tasks(Split.EVALUATION, 0)).payload
        pids = set()
        for _ in range(2):
            environment = open_environment(guessing(), processes=processes)
            _, info = await environment.reset(0, task)
            pids.add(info["pid"])
            await environment.close()
        await processes.close()
        assert len(pids) == 1

    asyncio.run(test())


def test_make_is_the_same_without_a_run() -> None:
    environment = guessing().make()
    environment.reset(0, next(guessing().tasks(Split.EVALUATION, 0)).payload)
    assert environment.step("7")[1] == 1.0
    environment.close()
    environment.close()
    with pytest.raises(EnvironmentFailedError, match="was closed"):
        environment.step("7")


def test_an_id_that_does_not_exist_names_those_that_do() -> None:
    environment = guessing(entry_point="").make()
    with pytest.raises(EnvironmentFailedError, match="has no environment 'guess'; there are"):
        environment.reset(0, "{}")
    environment.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"python": ""}, "make a virtual environment with .*pip install skyrl-gym"),
        ({"python": "python", "rows": ()}, "rows is empty"),
        ({"env": "lcb", "python": "python"}, "runs code of the policy outside of a box"),
        ({"python": "python", "config": {"a": object()}}, "has no JSON form"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], said: str) -> None:
    given = {"env": "guess", "rows": ROWS, **settings}
    with pytest.raises(SettingsError, match=said):
        SkyRLGym(**given)


def test_an_interpreter_that_does_not_exist_is_one_line() -> None:
    domain = SkyRLGym("guess", python="/nowhere/bin/python", rows=ROWS)
    assert domain.version == "skyrl-gym/unknown/guess"
    with pytest.raises(SettingsError, match="does not exist on this machine"):
        domain.program()
