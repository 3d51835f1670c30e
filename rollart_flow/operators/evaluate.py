"""The evaluation operator: takes one version and returns its scores.

Evaluation is a third stream, without credits, on a separate engine that is pinned to the version
under evaluation. `success` is the fraction of solved episodes with greedy sampling;
`success_sampled` is the fraction at the node's temperature. Tasks that training never uses are
measured separately, with the suffix `/held_out`. An episode is solved if the environment reports so
or, without such a report, if its final reward is at least 1.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import fmean
from typing import TYPE_CHECKING

import pyarrow as pa

from rollart_flow.control.ids import env_seed
from rollart_flow.control.inference.health import HealthLimits, watch
from rollart_flow.control.plane import EngineWorkers, engine_group
from rollart_flow.control.protocols import Inference
from rollart_flow.envs.base import Domain
from rollart_flow.operators.remote import RemoteCommands
from rollart_flow.operators.reward import RewardSettings, RewardStage
from rollart_flow.operators.rollout import Driver, RolloutContext
from rollart_flow.resources import Remote
from rollart_flow.rows import to_ipc, trajectories_table
from rollart_flow.schema import to_table
from rollart_flow.types import Assignment, Sampling, Split, Task, Trajectory, solved_by

if TYPE_CHECKING:
    from rollart_flow.operators.coordinator import CoordinatorActor

HELD_OUT = "/held_out"


@dataclass(frozen=True, slots=True)
class EvaluateContext:
    """Handles and settings of the evaluation operator."""

    rollout: RolloutContext
    reward: RewardSettings
    domains: tuple[Domain, ...]
    episodes: int
    sampling: Mapping[str, Sampling]
    """How tokens are sampled, by domain."""
    seed: int
    coordinator: Remote["CoordinatorActor"]
    health: HealthLimits
    """Health limits of the evaluation engine."""


@dataclass(frozen=True, slots=True)
class _Measure:
    """Episodes that determine one metric of one domain."""

    domain: str
    metric: str
    assignments: tuple[Assignment, ...]


class EvaluateOperator:
    """Operator that evaluates one version at a time."""

    def __init__(self, context: EvaluateContext) -> None:
        self._context = context
        self._driver: Driver | None = None
        self._reward = RewardStage(context.reward)

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
        assignments = [each for measure in measures for each in measure.assignments]
        trajectories = await self._driver.run_all(assignments)
        rewarded = await asyncio.gather(*map(self._reward, trajectories))
        scored = {trajectory.trajectory_id: trajectory for trajectory in rewarded}
        rows = [row for measure in measures for row in _scores(measure, version, scored)]
        scores = to_table("evaluations", rows)
        tables = {
            "trajectories": to_ipc(trajectories_table(scored.values())),
            "evaluations": to_ipc(scores),
        }
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
        await context.rollout.engines.call.serve.aio(version)
        commands = [RemoteCommands(worker) for worker in context.rollout.engines.workers]
        self._engines = engine_group(EngineWorkers(commands, version), driver.events.emit)
        self._health = asyncio.create_task(watch(self._engines, driver.events.emit, context.health))
        return driver

    async def _recover(self, worker: Inference) -> Sequence[Inference]:
        """Wait until a restarted evaluator serves the version under evaluation."""
        return [worker] if await self._engines.revive(worker.worker) else []

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
            for metric, sampling, episodes in (
                ("success", greedy, len(tasks)),
                ("success_sampled", sampled, context.episodes),
            ):
                name = metric + suffix
                chosen = islice(cycle(tasks), episodes)
                assignments = self._assignments(f"v{version:06d}/{name}", chosen, sampling)
                yield _Measure(domain.name, name, tuple(assignments))

    def _assignments(
        self, prefix: str, tasks: Iterator[Task], sampling: Sampling
    ) -> Iterator[Assignment]:
        for attempt, task in enumerate(tasks):
            group = f"{prefix}/{task.domain}"
            yield Assignment(
                trajectory_id=f"{group}/{attempt:04d}",
                group_id=group,
                task=task,
                attempt=attempt,
                env_seed=env_seed(self._context.seed, task.task_id, attempt),
                sampling=sampling,
                split=Split.EVALUATION,
            )


def solved(trajectory: Trajectory) -> bool:
    """Return whether a trajectory is solved (see `solved_by`); an unscored one is not."""
    return bool(solved_by(trajectory.solved, trajectory.reward))


def _scores(
    measure: _Measure, version: int, scored: dict[str, Trajectory]
) -> list[dict[str, object]]:
    episodes: Sequence[Trajectory] = [scored[a.trajectory_id] for a in measure.assignments]
    values = {measure.metric: fmean(solved(t) for t in episodes)}
    if measure.metric.startswith("success_sampled"):
        suffix = measure.metric.removeprefix("success_sampled")
        values[f"reward_mean{suffix}"] = fmean(t.reward or 0.0 for t in episodes)
        values[f"turns_mean{suffix}"] = fmean(len(t.turns) for t in episodes)
    return [
        {
            "step": version,
            "policy_version": version,
            "domain": measure.domain,
            "metric": metric,
            "value": float(value),
            "n": len(episodes),
        }
        for metric, value in values.items()
    ]
