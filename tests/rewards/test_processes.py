"""What starting a process takes is not what a reward function takes."""

import asyncio
import importlib
import os
import signal
import sys
from pathlib import Path

import pytest

from rollart_flow.errors import RewardTimeoutError
from rollart_flow.isolation.process import IsolatedError
from rollart_flow.isolation.references import reference
from rollart_flow.rewards import processes
from rollart_flow.rewards.processes import Deadline, Processes
from rollart_flow.rewards.score import Scorer
from rollart_flow.simulation import run
from tests.rewards import functions
from tests.rewards.test_score import TRAJECTORY

SLOW = """
from pathlib import Path

while not Path({flag!r}).exists():
    pass


def one(trajectory):
    return 1.0
"""


@pytest.mark.parametrize(("after_s", "expires"), [(0.4, False), (0.6, True)])
def test_a_limit_stands_still_while_it_is_held(after_s: float, expires: bool) -> None:
    async def main() -> bool:
        async def start(deadline: Deadline, seconds: float) -> None:
            with deadline.held():
                await asyncio.sleep(seconds)

        try:
            async with asyncio.timeout(1.0) as limit:
                deadline = Deadline(limit)
                await asyncio.sleep(0.5)
                await asyncio.gather(start(deadline, 100.0), start(deadline, 200.0))
                await asyncio.sleep(after_s)
        except TimeoutError:
            return True
        return False

    assert run(main()) is expires


def test_who_still_holds_a_limit_that_was_left_moves_it_no_more() -> None:
    async def main() -> None:
        async with asyncio.timeout(1.0) as limit:
            deadline = Deadline(limit)
            held = deadline.held()
            held.__enter__()
            await asyncio.sleep(0.5)
            deadline.end()
        held.__exit__(None, None, None)
        with deadline.held():
            await asyncio.sleep(5.0)

    run(main())


def test_a_function_whose_module_takes_longer_than_its_limit_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "flag"
    (tmp_path / "slow_to_load.py").write_text(SLOW.format(flag=str(flag)))
    monkeypatch.syspath_prepend(tmp_path)
    flag.touch()
    function = importlib.import_module("slow_to_load").one
    flag.unlink()

    async def main() -> list[float | None]:
        scorer = Scorer(function)
        asyncio.get_running_loop().call_later(1.3, flag.touch)
        scored = await asyncio.gather(*(scorer.score(TRAJECTORY, 1.0) for _ in range(4)))
        await scorer.close()
        return [each.reward for each in scored]

    try:
        assert asyncio.run(main()) == [1.0] * 4
    finally:
        del sys.modules["slow_to_load"]


def test_a_start_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START_S", 1e-6)

    async def main() -> None:
        async with asyncio.timeout(60.0) as limit:
            with pytest.raises(RewardTimeoutError, match="not loaded within 1e-06 s"):
                await Processes().take(reference(functions.pid), Deadline(limit))

    asyncio.run(main())


def test_a_process_goes_on_where_a_function_cannot_be_loaded() -> None:
    async def main() -> None:
        pool = Processes()
        gone = {**reference(functions.pid), "qualname": "gone"}
        async with asyncio.timeout(60.0) as limit:
            with pytest.raises(IsolatedError, match="has no gone"):
                await pool.take(gone, Deadline(limit))
            first = await pool.take(reference(functions.pid), Deadline(limit))
            pool.give(first)
            assert await pool.take(reference(functions.pid), Deadline(limit)) is first
        pool.give(first)
        await pool.warm(reference(functions.turns), 2)
        await pool.warm(gone, 1)
        async with asyncio.timeout(60.0) as limit:
            taken = [await pool.take(reference(functions.turns), Deadline(limit)) for _ in range(2)]
        assert first in taken, "one that is there already is used"
        for process in taken:
            pool.give(process)
        await pool.close()
        assert not any(process.isolated.alive for process in taken)

    asyncio.run(main())


def test_one_that_ended_while_it_was_idle_is_not_handed_out() -> None:
    async def main() -> None:
        pool = Processes()
        async with asyncio.timeout(60.0) as limit:
            first = await pool.take(reference(functions.pid), Deadline(limit))
            pool.give(first)
            os.kill(first.isolated.pid, signal.SIGKILL)
            while first.isolated.alive:  # noqa: ASYNC110  it tells nobody else
                await asyncio.sleep(0)
            second = await pool.take(reference(functions.pid), Deadline(limit))
        assert second is not first
        pool.give(second)
        await pool.close()

    asyncio.run(main())
