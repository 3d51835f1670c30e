"""A process of one's own: its line, its errors, its end."""

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
        assert await process.call({"a": 1}) == [process.pid, process.pid, ["a"]]
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


def test_a_hung_process_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """The parent is killed while its child, in an endless loop, reads nothing."""
    handler = tmp_path / "hanging.py"
    handler.write_text(
        "import os\n"
        "class Handler:\n"
        "    def __call__(self, request):\n"
        "        if request: os.write(1, b'ready'); exec('while True: pass')\n"
        "        return os.getpid()\n"
    )
    parent = (
        "import asyncio\n"
        "from rollart_flow.isolation.process import Isolated\n"
        "async def main():\n"
        "    process = await Isolated.start('hanging:Handler')\n"
        "    print(await process.call({}), flush=True)\n"
        "    await process.call({'hang': True})\n"
        "asyncio.run(main())\n"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", parent],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        pid = int(running.stdout.readline())
        assert running.stderr.read(5) == b"ready"
        child = os.pidfd_open(pid)
        running.kill()
        running.communicate()
    assert select.select([child], [], [], 60.0)[0] == [child]  # readable once the process ended
    os.close(child)
