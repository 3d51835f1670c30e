"""An environment in a process of its own: what it answers, and every way in which it may fail."""

import asyncio
import importlib.util
import os
import select
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rollart_flow.control.environment import AsyncEnvironment
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain, Environment
from rollart_flow.envs.process import ProcessEnvironment, WarmProcesses
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError
from rollart_flow.types import Action, Image
from rollart_flow.types.branching import messages_in
from rollart_flow.types.messages import user
from tests.envs.awkward import Awkward
from tests.logged import Logged

GOOD: tuple[Any, ...] = ("", 0.0, False, False, {})


def gone(pid: int) -> bool:
    """Whether a process ended; one that is only a zombie of another parent counts as ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


async def pid_of(environment: AsyncEnvironment) -> int:
    """Reset it and ask who it is."""
    _, info = await environment.reset(0, "{}")
    return cast(int, info["pid"])


@asynccontextmanager
async def opened(domain: Domain, timeout_s: float = 60.0) -> AsyncIterator[AsyncEnvironment]:
    environment = open_environment(domain, timeout_s=timeout_s)
    try:
        yield environment
    finally:
        await environment.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        await test()

    asyncio.run(body())


def test_it_answers_like_the_environment_itself_from_another_process() -> None:
    async def test() -> None:
        async with opened(Awkward(greeting="grüße")) as environment:
            observation, info = await environment.reset(7, "a\nb")
            assert observation == "grüße 7 a\nb"
            assert info["pid"] != os.getpid()
            assert await environment.step("go") == ("go", 1.0, False, False, {"success": False})
            assert await environment.step("end") == ("end", 2.0, True, False, {"success": True})

    run(test)


def test_what_the_environment_prints_does_not_disturb_the_answers() -> None:
    async def test() -> None:
        async with opened(Awkward()) as environment:
            await environment.reset(0, "{}")
            assert (await environment.step("print"))[0] == "print"

    run(test)


def test_raising_in_reset_names_the_error_and_the_next_reset_has_a_new_process() -> None:
    async def test() -> None:
        async with opened(Awkward()) as environment:
            before = await pid_of(environment)
            with pytest.raises(EnvironmentFailedError, match=r"ValueError: no such level as 'ra"):
                await environment.reset(0, "raise")
            assert gone(before)
            assert await pid_of(environment) != before

    run(test)


def test_one_that_hangs_is_killed_at_its_timeout() -> None:
    async def test() -> None:
        async with opened(Awkward(), timeout_s=1.0) as environment:
            pid = await pid_of(environment)
            with pytest.raises(EnvironmentTimeoutError, match=r"reset: no answer within 1 s"):
                await environment.reset(0, "hang")
            assert gone(pid)

    run(test)


def test_a_cancelled_call_kills_the_process() -> None:
    async def test() -> None:
        async with opened(Awkward()) as environment:
            pid = await pid_of(environment)
            call = asyncio.ensure_future(environment.reset(0, "hang"))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert gone(pid)

    run(test)


def test_one_that_exits_says_so() -> None:
    async def test() -> None:
        async with opened(Awkward()) as environment:
            await environment.reset(0, "{}")
            with pytest.raises(EnvironmentFailedError, match="ended with exit status 3"):
                await environment.step("exit")
            with pytest.raises(EnvironmentFailedError, match="before reset"):
                await environment.step("go")

    run(test)


def test_processes_that_it_started_end_with_it() -> None:
    async def test() -> None:
        async with opened(Awkward()) as environment:
            await environment.reset(0, "{}")
            child = cast(int, (await environment.step("child"))[4]["child"])
            assert not gone(child)
            handle = os.pidfd_open(child)
        # It was sent a signal, and dies when the system gets to it: the handle says when.
        ended, _, _ = select.select([handle], [], [], 30)
        os.close(handle)
        assert ended

    run(test)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (("", 0.0, False), "returned 3 values"),
        ((5, *GOOD[1:]), "returned int as observation"),
        (("", "much", *GOOD[2:]), "returned str as reward"),
        (("", float("nan"), *GOOD[2:]), "returned the reward nan"),
        (("", True, *GOOD[2:]), "returned bool as reward"),
        (("", 0.0, 1, False, {}), "returned int as terminated"),
        (("", 0.0, False, None, {}), "returned None as truncated"),
        (("", 0.0, False, False, []), "returned list as info"),
        (("", 0.0, False, False, {"thing": {1, 2}}), "set is not JSON serializable"),
    ],
)
def test_a_wrong_answer_is_named(answers: tuple[Any, ...], message: str) -> None:
    async def test() -> None:
        async with opened(Awkward(answers=answers)) as environment:
            await environment.reset(0, "{}")
            with pytest.raises(EnvironmentFailedError, match=message):
                await environment.step("nonsense")

    run(test)


def test_numpy_values_are_taken_for_what_they_hold() -> None:
    async def test() -> None:
        numbers = {"success": np.bool_(True), "place": np.arange(2)}
        answers = ("", np.float32(0.5), np.bool_(True), False, numbers)
        async with opened(Awkward(answers=answers)) as environment:
            await environment.reset(0, "{}")
            answer = await environment.step("nonsense")
            assert answer == ("", 0.5, True, False, {"success": True, "place": [0, 1]})

    run(test)


def test_closing_twice_during_a_call_and_before_a_reset() -> None:
    async def test() -> None:
        environment = open_environment(Awkward())
        await environment.close()
        pid = await pid_of(environment)
        call = asyncio.ensure_future(environment.reset(0, "hang"))
        await asyncio.sleep(0)
        await environment.close()
        await environment.close()
        with pytest.raises(EnvironmentFailedError, match="SIGKILL"):
            await call
        assert gone(pid)

    run(test)


def test_one_that_cannot_close_is_logged_and_ended(logged: Logged) -> None:
    async def test() -> None:
        environment = open_environment(Awkward(greeting="bad"))
        pid = await pid_of(environment)
        await environment.close()
        assert gone(pid)

    run(test)
    assert "OSError: cannot close" in logged.text


def test_warm_processes_serve_the_next_environment_but_never_two_at_a_time() -> None:
    async def test() -> None:
        warm = WarmProcesses(keep=1)
        first, second, third = (
            ProcessEnvironment(Awkward(greeting), 60.0, processes=warm) for greeting in "abc"
        )
        pids = [await pid_of(first), await pid_of(second)]
        assert pids[0] != pids[1]
        await first.close()
        await second.close()
        assert [gone(pid) for pid in pids] == [False, True]
        observation, info = await third.reset(1, "{}")
        assert (observation, info["pid"]) == ("c 1 {}", pids[0])
        await third.close()
        await warm.close()
        assert gone(pids[0])

    run(test)


def test_a_warm_process_that_died_is_not_handed_out() -> None:
    async def test() -> None:
        warm = WarmProcesses(keep=1)
        environment = ProcessEnvironment(Awkward(), 60.0, processes=warm)
        pid = await pid_of(environment)
        await environment.close()
        handle = os.pidfd_open(pid)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, ended.set)
        os.kill(pid, signal.SIGKILL)
        await ended.wait()
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
        assert await pid_of(environment) != pid
        await environment.close()
        await warm.close()

    run(test)


PIPELINE = """
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar
from rollart_flow.envs import Domain, Environment


class Echo(Environment):
    version = "echo/1"

    def reset(self, seed, task):
        return f"{__name__} {self.sign}", {}

    def step(self, action):
        return action, 0.0, True, False, {}


@dataclass(frozen=True)
class EchoDomain(Domain):
    name: ClassVar[str] = "echo"
    environment: ClassVar[type[Environment]] = Echo
    sign: tuple[str, ...] = ()

    def make(self):
        echo = Echo()
        echo.sign = self.sign
        return echo

    def tasks(self, split, seed):
        return iter(())
"""


def test_a_domain_of_a_pipeline_file_is_loaded_from_the_file(tmp_path: Path) -> None:
    source = tmp_path / "my pipeline.py"
    source.write_text(PIPELINE)
    spec = importlib.util.spec_from_file_location("my_pipeline", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["my_pipeline"] = module
    spec.loader.exec_module(module)
    known = open_environment(module.EchoDomain(sign=("a", "b")))
    del sys.modules["my_pipeline"]
    by_value = open_environment(module.EchoDomain(sign=("c",)), source=source)

    async def test() -> None:
        sys.modules["my_pipeline"] = module
        assert (await known.reset(0, "{}"))[0] == "my_pipeline ('a', 'b')"
        await known.close()
        del sys.modules["my_pipeline"]
        assert (await by_value.reset(0, "{}"))[0] == "my_pipeline ('c',)"
        await by_value.close()

    run(test)


def test_one_that_hangs_delays_no_other() -> None:
    async def test() -> None:
        async with opened(Awkward()) as slow, opened(Awkward()) as quick:
            await slow.reset(0, "{}")
            await quick.reset(0, "{}")
            hanging = asyncio.ensure_future(slow.reset(0, "hang"))
            for turn in range(20):
                answer = await quick.step("go")
                assert answer[1] == turn + 1
            assert not hanging.done()
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging

    run(test)


@dataclass(frozen=True)
class SlowlyMade(Awkward):
    """An environment whose imports take longer than a step may."""

    def make(self) -> Environment:
        time.sleep(1.5)
        return super().make()


def test_making_an_environment_does_not_count_against_the_limit_of_a_step() -> None:
    async def test() -> None:
        async with opened(SlowlyMade(), timeout_s=1.0) as environment:
            assert (await environment.reset(3, "x"))[0] == "hello 3 x"

    run(test)


class ShowsImages(Environment):
    """Shows an image twice in one message, then again, then one that is none."""

    converses = True

    def __init__(self) -> None:
        self._turn = 0

    def reset(self, seed: int, task: str) -> tuple[Any, dict[str, object]]:
        image = Image.of(np.zeros((4, 4, 3), np.uint8))
        return [user("look:", image, "and", image)], {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, object]]:
        self._turn += 1
        if self._turn == 1:
            again = Image.of(np.zeros((4, 4, 3), np.uint8))
            return [user("again:", again)], 0.0, False, False, {}
        return [user(Image("0" * 64, b"no image"))], 0.0, False, False, {}


@dataclass(frozen=True)
class Shows(Domain):
    name = "shows"
    environment = ShowsImages

    def make(self) -> ShowsImages:
        return ShowsImages()

    def tasks(self, split: object, seed: int) -> Any:
        raise NotImplementedError

    def example_action(self, task: object, random: object) -> str:
        raise NotImplementedError


def test_images_come_with_their_files_and_one_that_is_none_is_an_error() -> None:
    async def test() -> None:
        async with opened(Shows()) as environment:
            first, _ = await environment.reset(0, "{}")
            second, *_ = await environment.step(Action("go"))
            with pytest.raises(EnvironmentFailedError, match="no image"):
                await environment.step(Action("go"))
        images = [image for message in (*first, *messages_in(second)) for image in message.images]
        assert images == [Image.of(np.zeros((4, 4, 3), np.uint8))] * 3
        assert all(image.png is not None for image in images)
        assert images[1] is images[2]

    run(test)
