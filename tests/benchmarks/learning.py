"""One run of the demo's two domains, in one process without Ray, at an exact staleness.

The settings are those of `pipelines/two_domains.py`, but for the algorithm and the seed. The parts
are the library's own: engine, proxy, EnvManager, inline domains, reward, the columns of a batch,
trainer. Batches wait in a queue of alpha + 1: step k trains on what version max(0, k - 1 - alpha)
generated. The invariant: a run is a function of its arguments, and all runs of a seed have the same
initial policy and the same tasks.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from statistics import fmean

import pyarrow as pa

from rollart_flow.algorithms import Algorithm
from rollart_flow.control.ids import group_name
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.engines.base import Engine
from rollart_flow.engines.registry import EngineOptions, build_engine
from rollart_flow.envs.adapter import InlineEnvironment
from rollart_flow.models.version_zero import load_codec, materialize
from rollart_flow.operators.batch_columns import prepare
from rollart_flow.operators.tasks import task_stream
from rollart_flow.pipeline import Pipeline
from rollart_flow.pipeline.loading import load_pipeline
from rollart_flow.rewards.base import environment_reward
from rollart_flow.rewards.score import Scorer
from rollart_flow.rows import samples, trajectories_table
from rollart_flow.runner.settings import rank_settings, sampling_of
from rollart_flow.simulation import run
from rollart_flow.store.layout import policy_uri
from rollart_flow.trainers.base import Trainer
from rollart_flow.trainers.build import build_trainer
from rollart_flow.trainers.warm_start import warm_start
from rollart_flow.types import Assignment, Chunk, GenerationRequest, Trajectory
from tests.dst.environments import wall
from tests.dst.log import EventLog

PIPELINE = Path(__file__).parents[2] / "pipelines" / "two_domains.py"
GOAL = 0.8
"""Sampled success that both domains must have."""
WINDOW = 4
"""Batches over which success is measured; after the first few, each has another version."""


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of a run."""

    steps: int | None
    """Training steps of the newest generating version when the last `WINDOW` generated batches
    reached `GOAL` in both domains; None if they never did."""
    trained: int
    """Number of training steps."""
    success: dict[str, float]
    """Success by domain, over the last `WINDOW` generated batches."""
    best: float
    """Highest success that both domains had at the same time."""


def learn(algorithm: Algorithm, *, alpha: int, seed: int, steps: int, folder: Path) -> Learned:
    """Train until both domains have `GOAL`, or for `steps` steps.

    Args:
        algorithm: the recipe.
        alpha: versions by which a batch is behind: exactly as many from step alpha + 1 on.
        seed: seed of the initial policy, the tasks, sampling and the order of minibatches.
        steps: most training steps; the demo has `demo(0).train.steps`.
        folder: an empty folder, for the initial policy.
    """
    pipeline = demo(seed)
    make_policy(pipeline, folder)
    return run(_Trial(pipeline, algorithm, folder).learn(alpha, steps))


def demo(seed: int) -> Pipeline:
    """The demo's pipeline with one seed for everything."""
    seeds = ("policy.seed", "tasks.seed", "pipeline.seed")
    return load_pipeline(PIPELINE, {key: str(seed) for key in seeds}).pipeline


def make_policy(pipeline: Pipeline, folder: Path) -> None:
    """Store the initial policy as a run does."""
    policy, at = pipeline.policy, policy_uri(str(folder))
    materialize(policy, Path(at))
    warm_start(at, pipeline.tasks.domains, load_codec(at), policy.warm_start, policy.seed)


class _Worker:
    """The protocol `Inference` of an engine in this process."""

    worker = "engine"
    hardware = "CPU"
    stands_for = frozenset({"CPU"})

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        return self._engine.generate(request)

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A batch of trajectories that one version generated."""

    version: int
    rows: pa.Table
    solved: dict[str, list[bool]]
    """Success by domain."""


class _Trial:
    """A policy, the engine that samples with it, and its trainer."""

    def __init__(self, pipeline: Pipeline, algorithm: Algorithm, folder: Path) -> None:
        tasks, at = pipeline.tasks, policy_uri(str(folder))
        self._pipeline = pipeline
        self._algorithm = algorithm
        self._codec = load_codec(at)
        self._engine = build_engine(pipeline.policy, at, EngineOptions(seed=pipeline.seed))
        self._trainer: Trainer = build_trainer(rank_settings(pipeline), algorithm, at)
        self._proxy = LLMProxy([_Worker(self._engine)], EventLog())
        self._scorer = Scorer(environment_reward)
        self._rollout = RolloutSettings(
            batch_size=pipeline.buffer.batch_size,
            group_size=tasks.group_size,
            own_sampling=sampling_of(pipeline.rollout, pipeline.tasks.domains, str(folder)),
            seed=pipeline.seed,
        )
        self._domains = {domain.name: domain for domain in tasks.domains}
        stream = task_stream(tasks.sources, seed=tasks.seed, weights=tasks.weights)
        self._groups = zip(map(group_name, count()), stream, strict=False)

    async def learn(self, alpha: int, steps: int) -> Learned:
        waiting: deque[_Drawn] = deque()
        recent: deque[_Drawn] = deque(maxlen=WINDOW)
        best = 0.0
        for _ in range(alpha):
            waiting.append(await self._draw())
        for version in range(steps + 1):
            waiting.append(await self._draw())
            recent.append(waiting[-1])
            success = _success(recent)
            if len(recent) == WINDOW:
                best = max(best, min(success.values()))
            reached = best >= GOAL
            if reached or version == steps:
                break
            batch = waiting.popleft()
            assert version - batch.version == min(alpha, version), "the staleness is not exact"
            await self._train(batch)
        await self._engine.close()
        return Learned(version if reached else None, version, success, best)

    async def _draw(self) -> _Drawn:
        """The trajectories of the next tasks, by the newest version."""
        groups = islice(self._groups, self._rollout.batch_size // self._rollout.group_size)
        attempts = [
            self._attempt(self._rollout.assignment(group, task, attempt))
            for group, task in groups
            for attempt in range(self._rollout.group_size)
        ]
        rows = trajectories_table(await asyncio.gather(*attempts))
        solved: dict[str, list[bool]] = {name: [] for name in self._domains}
        for sample in samples(rows):
            assert sample.trainable, sample
            solved[sample.domain].append(bool(sample.solved))
        return _Drawn(self._engine.version, rows, solved)

    async def _attempt(self, assignment: Assignment) -> Trajectory:
        """One attempt, scored."""
        rollout, domain = self._pipeline.rollout, self._domains[assignment.task.domain]
        manager = EnvManager(
            assignment,
            lambda: InlineEnvironment(domain),
            self._codec,
            self._proxy,
            rollout.attempt_limits(domain, self._pipeline.policy),
            wall,
            env_version=domain.environment.version,
        )
        (trajectory,) = await manager.run()
        _, timeout_s = self._pipeline.reward_in(trajectory.domain)
        return await self._scorer.score(trajectory, timeout_s)

    async def _train(self, batch: _Drawn) -> None:
        """Take one training step; its version generates from then on."""
        before = self._trainer.version
        lag = [before - batch.version] * batch.rows.num_rows
        rows = batch.rows.append_column("staleness", pa.array(lag, pa.int32()))
        prepared = prepare(self._algorithm, rows, before, self._trainer.recompute_old_logprobs)
        self._trainer.train_step(before + 1, prepared.rows)
        await self._engine.suspend()
        await self._engine.load(self._trainer.version, self._trainer.weights())
        await self._engine.resume()


def _success(batches: deque[_Drawn]) -> dict[str, float]:
    """Share of the episodes of some batches that solved their task, by domain."""
    return {
        domain: fmean(solved for batch in batches for solved in batch.solved[domain])
        for domain in batches[0].solved
    }
