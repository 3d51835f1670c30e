"""A process of one's own: its line, its errors, its end."""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from rollart_flow.isolation.process import Isolated, IsolatedError

HANDLER = f"{__name__}:Handler"


class Handler:
    """Runs in the process; each request names what to do."""

    def __call__(self, request: Mapping[str, Any]) -> object:
        if "signal" in request:
            os.kill(os.getpid(), request["signal"])
        if "bytes" in request:
            return "x" * int(request["bytes"])
        if "raw" in request:
            for line in request["raw"]:
                os.write(int(sys.argv[1]), line.encode())
        if request.get("raise"):
            raise KeyError(request["raise"])
        return [os.getpid(), os.getsid(0), sorted(request)]


def test_a_request_is_answered_by_a_process_that_leads_a_session() -> None:
    async def test() -> None:
        process = await Isolated.start(HANDLER)
        pid, session, names = cast(list[Any], await process.call({"a": 1}))
        assert names == ["a"]
        assert pid == session != process.pid
        assert len(str(await process.call({"bytes": 3_000_000}))) == 3_000_000
        await process.kill()
        await process.kill()
        assert not process.alive
        with pytest.raises(IsolatedError, match="killed before"):
            await process.call({})

    asyncio.run(test())


def test_an_error_is_an_answer_and_the_process_lives_on() -> None:
    async def test() -> None:
        process = await Isolated.start(HANDLER)
        with pytest.raises(IsolatedError, match=r"^KeyError: 'x'$"):
            await process.call({"raise": "x"})
        assert process.alive
        assert await process.call({})
        await process.kill()

    asyncio.run(test())


def test_a_handler_that_cannot_be_imported_is_an_error() -> None:
    async def test() -> None:
        process = await Isolated.start("rollart_absent:Handler")
        with pytest.raises(IsolatedError, match=r"ModuleNotFoundError: .*rollart_absent"):
            await process.call({})
        await process.kill()

    asyncio.run(test())


def test_a_process_that_is_killed_says_by_what() -> None:
    async def test() -> None:
        process = await Isolated.start(HANDLER)
        with pytest.raises(IsolatedError, match="killed by SIGSEGV"):
            await process.call({"signal": 11})
        assert not process.alive

    asyncio.run(test())


@pytest.mark.parametrize("line", ["nonsense\n", "[1]\n", "{}\n", '"answer"\n', "\xff\n"])
def test_what_is_no_message_is_refused_and_ends_the_process(line: str) -> None:
    async def test() -> None:
        process = await Isolated.start(HANDLER)
        with pytest.raises(IsolatedError, match="where an answer belongs"):
            await process.call({"raw": [line]})
        assert not process.alive

    asyncio.run(test())


def test_another_interpreter_runs_a_file_and_sees_only_its_own_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "theirs.py"
    file.write_text(
        "import os, sys\n"
        "class Theirs:\n"
        "    def __call__(self, request):\n"
        "        seen = [path for path in sys.path if path in request['hidden']]\n"
        "        return [seen, 'PYTHONPATH' in os.environ, os.getsid(0) == os.getpid()]\n"
    )

    async def test() -> None:
        process = await Isolated.start(f"{file}:Theirs", python=sys.executable)
        assert await process.call({"hidden": [str(tmp_path)]}) == [[], False, True]
        await process.kill()

    asyncio.run(test())


def test_an_interpreter_that_does_not_exist_is_an_error() -> None:
    async def test() -> None:
        with pytest.raises(IsolatedError, match=r"no process can be started: .*No such file"):
            await Isolated.start(HANDLER, python="/nowhere/python")

    asyncio.run(test())
