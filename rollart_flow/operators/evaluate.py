"""The evaluation operator: takes one version and returns its scores.

Evaluation is a third stream, without credits, on a separate engine that is pinned to the version
under evaluation. `success` is the fraction of solved episodes with greedy sampling;
`success_sampled` is the fraction at the node's temperature, and pass@k is estimated from the same
attempts. Tasks that training never uses are measured separately, with the suffix `/held_out`. An
episode is solved if the environment reports so or, without such a report, if its final reward is at
least 1.

A task may have redundant attempts: once enough of them ended well, the others are cancelled, and
their rows say so (ROLL Flash section 5.2). Failed attempts count, as not solved, only where too few
of the group ended well.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING

import pyarrow as pa

from rollart_flow.attempt_rows import rows_beside
from rollart_flow.control.ids import env_seed
from rollart_flow.control.inference.health import HealthLimits, watch
from rollart_flow.control.plane import EngineWorkers, engine_group
from rollart_flow.control.protocols import Inference
from rollart_flow.control.rollout.attempt_manager import AttemptManager
from rollart_flow.control.rollout.redundancy import Branches, first_of
from rollart_flow.envs.base import Domain
from rollart_flow.episodes import whole
from rollart_flow.operators.remote import RemoteCommands
from rollart_flow.operators.reward import RewardSettings, RewardStage
from rollart_flow.operators.rollout import Driver, RolloutContext
from rollart_flow.operators.scores import fraction_score, sampled_scores
from rollart_flow.resources import Remote
from rollart_flow.rows import to_ipc, trajectories_table
from rollart_flow.schema import to_table
from rollart_flow.types import Assignment, Sampling, Split, Task

if TYPE_CHECKING:
    from rollart_flow.operators.run_coordinator import RunCoordinator

HELD_OUT = "/held_out"
_AT_ONCE = 256
"""Attempts that run at a time, each of which may have a process of its own."""
_AHEAD = 64
"""Attempts beyond these whose boxes are made meanwhile."""


@dataclass(frozen=True, slots=True)
class EvaluateContext:
    """Handles and settings of the evaluation operator."""

    rollout: RolloutContext
    reward: RewardSettings
    domains: tuple[Domain, ...]
    episodes: int
    samples: int
    """Attempts at a task that count for `success_sampled` and pass@k."""
    redundancy: int
    """Further attempts at each task, of which the slowest are cancelled."""
    sampling: Mapping[str, Sampling]
    """Sampling of tokens by domain."""
    seed: int
    coordinator: Remote["RunCoordinator"]
    health: HealthLimits
    """Health limits of the evaluation engine."""


@dataclass(frozen=True, slots=True)
class _Measure:
    """Groups of attempts that determine one metric of one domain."""

    domain: str
    metric: str
    needed: int
    """Attempts of each group that count."""
    groups: tuple[tuple[Assignment, ...], ...]


class EvaluateOperator:
    """Operator that evaluates one version at a time."""

    def __init__(self, context: EvaluateContext) -> None:
        self._context = context
        self._driver: Driver | None = None
        self._reward = RewardStage(context.reward)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._announced = asyncio.Semaphore(_AT_ONCE + _AHEAD)

    async def __call__(self, block: pa.Table) -> pa.Table:
        """Evaluate the version of a one-row block, commit its rows, and return its scores."""
        (version,) = block["version"].to_pylist()
        context = self._context
        if self._driver is None:
            self._driver = await self._start(version)
        await self._engines.suspend()
        await self._engines.update(version)
        await self._engines.resume()
        measures = [m for domain in context.domains for m in self._measures(domain, version)]
        measured = await asyncio.gather(
            *(self._attempted(self._driver, measure) for measure in measures)
        )
        attempted = zip(measures, measured, strict=True)
        rows = [row for measure, groups in attempted for row in _scores(measure, version, groups)]
        scores = to_table("evaluations", rows)
        attempts = [each for groups in measured for group in groups for each in group]
        trajectories = list(chain.from_iterable(attempts))
        tables = {
            "trajectories": to_ipc(trajectories_table(trajectories)),
            "evaluations": to_ipc(scores),
        }
        tables |= {table: to_ipc(rows) for table, rows in rows_beside(trajectories).items()}
        await context.rollout.buffer.call.commit.start(tables)
        await context.coordinator.call.evaluated.start(version)
        return pa.table({"version": [version], "scores": [tables["evaluations"]]})

    async def close(self) -> None:
        """Release what episodes and rewards have kept for the next ones; no version follows."""
        if self._driver is not None:
            self._health.cancel()
            await asyncio.gather(self._health, return_exceptions=True)
            await self._driver.close()
        await self._reward.close()

    async def _start(self, version: int) -> Driver:
        """Create the driver, and start to serve a version and to monitor the engine's health."""
        context = self._context
        driver = Driver(context.rollout, self._recover)
        await driver.ready()
        await context.rollout.engines.call.serve.aio(version)
        commands = [RemoteCommands(worker) for worker in context.rollout.engines.workers]
        self._engines = engine_group(EngineWorkers(commands, version), driver.events.emit)
        self._health = asyncio.create_task(watch(self._engines, driver.events.emit, context.health))
        return driver

    async def _recover(self, worker: Inference) -> Sequence[Inference]:
        """Wait until a restarted evaluator serves the version under evaluation."""
        return [worker] if await self._engines.revive(worker.worker) else []

    async def _attempted(self, driver: Driver, measure: _Measure) -> list[list[Branches]]:
        """Run the groups of a measure; each is returned with the attempts that count first."""
        managers = ([driver.manager(each) for each in group] for group in measure.groups)
        groups = (first_of(group, measure.needed, self._score) for group in managers)
        return list(await asyncio.gather(*groups))

    async def _score(self, manager: AttemptManager) -> Branches:
        """Run one attempt and score it; its first box is made while it waits for its place."""
        driver = self._driver
        assert driver is not None
        async with self._announced:
            boxes = driver.expect(manager.assignment)
            try:
                async with self._places:
                    return await self._reward(await driver.run(manager))
            finally:
                if boxes is not None:
                    boxes.release()

    def _measures(self, domain: Domain, version: int) -> Iterator[_Measure]:
        context = self._context
        sampled = context.sampling[domain.name]
        greedy = replace(sampled, temperature=0.0, top_p=1.0, top_k=0)
        sets = {
            "": list(islice(domain.tasks(Split.EVALUATION, context.seed), context.episodes)),
            HELD_OUT: list(islice(domain.held_out(context.seed), context.episodes)),
        }
        for suffix, tasks in sets.items():
            if not tasks:
                continue
            # Tasks that are attempted once are repeated up to the number of episodes.
            often = len(tasks) if context.samples > 1 else context.episodes
            for metric, sampling, episodes, needed in (
                ("success", greedy, len(tasks), 1),
                ("success_sampled", sampled, often, context.samples),
            ):
                name = metric + suffix
                chosen = islice(cycle(tasks), episodes)
                prefix = f"v{version:06d}/{name}/{domain.name}"
                attempts = needed + context.redundancy
                groups = self._groups(prefix, chosen, sampling, attempts)
                yield _Measure(domain.name, name, needed, tuple(groups))

    def _groups(
        self, prefix: str, tasks: Iterator[Task], sampling: Sampling, attempts: int
    ) -> Iterator[tuple[Assignment, ...]]:
        """Yield the attempts at each task, which share one environment seed."""
        for number, task in enumerate(tasks):
            name = f"{prefix}/{number:04d}"
            one = Assignment(
                trajectory_id=name,
                group_id=prefix,
                task=task,
                attempt=number,
                env_seed=env_seed(self._context.seed, task.task_id, number),
                sampling=sampling,
                split=Split.EVALUATION,
            )
            if attempts == 1:
                yield (one,)
                continue
            yield tuple(
                replace(one, trajectory_id=f"{name}-{index:02d}", group_id=name, attempt=index)
                for index in range(attempts)
            )


def _scores(
    measure: _Measure, version: int, groups: Sequence[Sequence[Branches]]
) -> list[dict[str, object]]:
    tasks = [[whole(branches) for branches in group[: measure.needed]] for group in groups]
    if measure.metric.startswith("success_sampled"):
        found = list(sampled_scores(measure.metric, tasks))
    else:
        found = [fraction_score(measure.metric, tasks)]
    return [
        {
            "step": version,
            "policy_version": version,
            "domain": measure.domain,
            "metric": score.metric,
            "value": score.value,
            "n": len(tasks) * measure.needed,
            "low": None if score.interval is None else score.interval[0],
            "high": None if score.interval is None else score.interval[1],
        }
        for score in found
    ]
