"""An inline environment behind the asynchronous port."""

import asyncio
import os

import pytest

from rollart_flow.envs.adapter import InlineEnvironment, open_environment
from rollart_flow.envs.process import ProcessEnvironment
from rollart_flow.errors import EnvironmentFailedError
from tests.envs.awkward import Awkward, AwkwardInline
from tests.logged import Logged


def test_the_environment_chooses_where_it_runs() -> None:
    assert isinstance(open_environment(Awkward()), ProcessEnvironment)
    assert isinstance(open_environment(AwkwardInline()), InlineEnvironment)


def test_it_answers_in_this_process() -> None:
    async def test() -> None:
        environment = open_environment(AwkwardInline())
        assert await environment.reset(7, "x") == ("hello 7 x", {"pid": os.getpid()})
        assert await environment.step("end") == ("end", 1.0, True, False, {"success": True})
        await environment.close()
        await environment.close()

    asyncio.run(test())


def test_its_errors_are_converted() -> None:
    async def test() -> None:
        environment = open_environment(AwkwardInline(answers=("", 0.0)))
        with pytest.raises(EnvironmentFailedError, match="before reset"):
            await environment.step("go")
        with pytest.raises(EnvironmentFailedError, match="ValueError: no such level"):
            await environment.reset(0, "raise")
        await environment.reset(0, "{}")
        with pytest.raises(EnvironmentFailedError, match="returned 2 values; it must return"):
            await environment.step("nonsense")

    asyncio.run(test())


def test_one_that_cannot_close_is_logged(logged: Logged) -> None:
    async def test() -> None:
        environment = open_environment(AwkwardInline(greeting="bad"))
        await environment.reset(0, "{}")
        await environment.close()

    asyncio.run(test())
    assert "OSError: cannot close" in logged.text
