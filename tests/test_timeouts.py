"""A limit that passes is a TimeoutError, also where a cancelled task cleans up."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from rollart_flow import timeouts
from tests.code import modules, tree

SYSTEM = Path("/usr/bin/python3")
"""Python of the system: Debian 12 has 3.11.2, whose `asyncio.timeout` counts otherwise."""
PROGRAM = """
import asyncio, sys
from importlib.util import module_from_spec, spec_from_file_location

spec = spec_from_file_location("timeouts", sys.argv[1])
timeouts = module_from_spec(spec)
spec.loader.exec_module(timeouts)

async def passed(limit):
    try:
        async with limit:
            await asyncio.Event().wait()
    except BaseException as error:
        return f"{type(error).__name__} {limit.expired()}"

async def cleaning(limits):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return [await passed(limits()) for _ in range(2)]

async def cancelled(task):
    await asyncio.sleep(0)
    task.cancel()
    return await task

async def main():
    now = asyncio.get_running_loop().time
    print(await passed(timeouts.timeout(0)), await passed(timeouts.timeout_at(now())))
    print(*await cancelled(asyncio.ensure_future(cleaning(lambda: timeouts.timeout(0)))))
    print(await cancelled(asyncio.ensure_future(passed(timeouts.timeout(None)))))
    try:
        async with timeouts.timeout(0):
            try:
                await asyncio.Event().wait()
            finally:
                print(await passed(timeouts.timeout(0)))
    except TimeoutError:
        print("the outer one")
    async with timeouts.timeout(60) as limit:
        pass
    print(limit.expired())

asyncio.run(main())
"""


@pytest.mark.parametrize("python", [sys.executable, str(SYSTEM)])
def test_a_limit_holds_while_a_cancelled_task_cleans_up(python: str) -> None:
    asked = "import sys; print(sys.version_info >= (3, 11))"
    if not Path(python).exists() or "True" not in ran(python, asked):
        pytest.skip(f"{python} is no Python of at least 3.11")
    assert ran(python, PROGRAM, timeouts.__file__).splitlines() == [
        "TimeoutError True TimeoutError True",
        "TimeoutError True TimeoutError True",
        "CancelledError False",
        "TimeoutError True",
        "the outer one",
        "False",
    ]


def ran(python: str, program: str, *arguments: str) -> str:
    command = [python, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_no_module_takes_another_limit() -> None:
    others = [
        f"{path}:{node.lineno}"
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in (("asyncio", "timeout"), ("asyncio", "timeout_at"))
    ]
    assert not others
