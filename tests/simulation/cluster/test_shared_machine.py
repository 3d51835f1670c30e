"""The delays that a stored run adds to attempts, steps and commits."""

import asyncio
from collections import Counter

import pytest

from rollart_flow.simulation.cluster.workers import SharedMachine
from rollart_flow.simulation.measured import (
    Measured,
    MeasuredEngine,
    MeasuredTraining,
    RecordedGroup,
    Series,
    TokenCurve,
)
from rollart_flow.simulation.models.batching import ContinuousBatch
from rollart_flow.simulation.models.engine import SimulatedEngine
from rollart_flow.simulation.models.scoring import MeasuredScoring
from rollart_flow.simulation.virtual_time import run
from rollart_flow.simulation.workloads import Script, ScriptedTurn


def script(reward: float) -> Script:
    return Script(0.1, (ScriptedTurn(5, 2, 0.1),), reward, judged=False)


def engine() -> SimulatedEngine:
    batch = ContinuousBatch(MeasuredEngine("CPU", 0.1, 0.0, 0.01, 0.001))
    return SimulatedEngine("engine-0", batch, lambda _, position: 2, Counter())


def measured(*, training_stretch: float = 0.0, apart_s: float = 0.0) -> Measured:
    return Measured(
        engines=((MeasuredEngine("CPU", 0.1, 0.0, 0.01, 0.001), 1),),
        groups=(RecordedGroup("lake", (script(0.0), script(1.0))),),
        training=MeasuredTraining(TokenCurve(((0.0, 1.0),)), Series((1.0,)), apart_s),
        exchange_s=0.1,
        launch_s=Series((0.5,)),
        scored_s=0.2,
        commit_s=Series((1.0,)),
        training_stretch=training_stretch,
    )


def now() -> float:
    return asyncio.get_running_loop().time()


def test_attempts_start_one_after_the_other() -> None:
    async def main() -> list[float]:
        machine = SharedMachine(measured(), [], 0)

        async def start() -> float:
            await machine.start_attempt()
            return now()

        return list(await asyncio.gather(*(start() for _ in range(3))))

    assert run(main()) == pytest.approx([0.5, 1.0, 1.5])


def test_training_is_slower_only_while_attempts_run() -> None:
    """Half a second alone, then an attempt of one second at half the speed, then alone again."""

    async def main() -> float:
        machine = SharedMachine(measured(training_stretch=1.0), [engine()], 0)

        async def attempt() -> None:
            await machine.start_attempt()
            await asyncio.sleep(1.0)
            machine.end_attempt()

        running = asyncio.create_task(attempt())
        await machine.train(2.0)
        assert running.done()
        return now()

    assert run(main()) == pytest.approx(0.5 + 1.0 + (2.0 - 0.5 - 0.5))


def test_attempts_slow_down_only_the_computation_of_a_step() -> None:
    """Of three seconds, one is apart, and two take four beside an attempt."""

    async def main() -> float:
        machine = SharedMachine(measured(training_stretch=1.0, apart_s=1.0), [engine()], 0)
        await machine.start_attempt()
        started = now()
        await machine.train(3.0)
        return now() - started

    assert run(main()) == pytest.approx(1.0 + 4.0)


def test_without_measurements_nothing_is_added() -> None:
    async def main() -> float:
        machine = SharedMachine(None, [], 0)
        await machine.start_attempt()
        await machine.train(2.0)
        machine.end_attempt()
        return now()

    assert run(main()) == 2.0


def test_a_commit_includes_the_trajectories_that_came_before_its_end() -> None:
    async def main() -> list[float]:
        scoring = MeasuredScoring(measured(), 0)

        async def score(after_s: float) -> float:
            await asyncio.sleep(after_s)
            await scoring.score("t", script(1.0))
            return now()

        return list(await asyncio.gather(*(score(s) for s in (0.0, 0.9, 1.5))))

    assert run(main()) == pytest.approx([1.2, 1.2, 2.7])


def test_an_engine_is_slower_while_a_step_trains() -> None:
    """Each of two tokens takes a pass of 11 ms, and twice as long from the middle of the first."""

    async def main() -> float:
        slowed = engine()
        running = asyncio.create_task(slowed.run("t", 5, 2))
        await asyncio.sleep(0.011)
        slowed.pace(2.0)
        await running
        return now()

    assert run(main()) == pytest.approx(0.011 + 0.022)
