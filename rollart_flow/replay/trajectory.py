"""Replay of a stored trajectory: its environment, its reward, and the logprobs of its tokens.

A trajectory of any outcome can be replayed, as far as it was recorded: for a failed or cancelled
attempt, the replay covers its recorded turns. `replay.compare` documents the comparison.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart_flow.envs.base import Domain
from rollart_flow.episodes import whole
from rollart_flow.errors import SettingsError, TrainerError, WeightsError
from rollart_flow.models.version_zero import load_codec
from rollart_flow.pipeline import GeneratingNode, Pipeline
from rollart_flow.replay.compare import Replay, first_divergence, turn_reports
from rollart_flow.replay.episode import in_order, run_again
from rollart_flow.replay.logprobs import TOLERANCE, ScoredToken, score_again
from rollart_flow.replay.spoken import recorded_turns, spoken_again
from rollart_flow.replay.stored_attempts import read_attempt
from rollart_flow.rewards.score import score
from rollart_flow.runner.retrain import stored_pipeline
from rollart_flow.store import Run
from rollart_flow.store.cache import local_file
from rollart_flow.store.layout import pipeline_uri, policy_uri
from rollart_flow.types import Split, Trajectory
from rollart_flow.types.trajectories import unscored
from rollart_flow.weights.folder_store import local_path


@dataclass(frozen=True, slots=True)
class TrajectoryReplay:
    """Result of replaying one recorded trajectory."""

    trajectory_id: str
    equal: bool
    divergence: str | None
    """First divergence as one line: turn, token if applicable, recorded and replayed value."""
    turns: list[dict[str, Any]]
    """One report per turn; see `compare.turn_reports`."""


def replay_trajectory(run_uri: str, trajectory_id: str) -> TrajectoryReplay:
    """Re-run a trajectory with its recorded actions, and score it again.

    The environment gets the recorded seed and task. Each token is scored under its recorded policy
    version, which is retrained from a checkpoint if its weights are no longer stored.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: there is no such trajectory, or its domain is not in the stored pipeline.
    """
    run = Run(run_uri)
    attempt, trajectory = read_attempt(run, trajectory_id)
    pipeline = stored_pipeline(run)
    domain, node = domain_of(pipeline, trajectory)
    tokens, unscored = score_tokens(run, pipeline, trajectory)
    codec = load_codec(local_path(policy_uri(run.uri)))
    limits = node.attempt_limits(domain, pipeline.policy)
    # The environment needs its own event loop: the caller may have a running one (a notebook).
    with ThreadPoolExecutor(1) as thread:
        source = local_file(pipeline_uri(run.uri))
        again = run_again(domain, attempt, trajectory, codec, limits, source=source)
        episode = thread.submit(asyncio.run, again).result()
        scored = None
        if trajectory.reward is not None:
            scoring = reward_again(pipeline, attempt, source)
            scored = thread.submit(asyncio.run, scoring).result()
    replayed = Replay(
        trajectory=trajectory,
        episode=episode,
        recorded=tuple(recorded_turns(trajectory)),
        spoken=tuple(spoken_again(trajectory, codec)),
        final=all(row is trajectory for row, _, _ in in_order(attempt)[-1:]),
        max_turns=node.turns(domain),
        tokens=tokens,
        unscored=unscored,
        tolerance=TOLERANCE[pipeline.policy.computes_in],
        scored=scored,
    )
    divergence = first_divergence(replayed)
    version = domain.version
    if divergence is not None and version != trajectory.env_version:
        divergence += f" (environment {trajectory.env_version} then, {version} now)"
    return TrajectoryReplay(trajectory_id, divergence is None, divergence, turn_reports(replayed))


def domain_of(pipeline: Pipeline, trajectory: Trajectory) -> tuple[Domain, GeneratingNode]:
    """Return the domain of a trajectory, and the node of the pipeline that generated it.

    Raises:
        SettingsError: the pipeline does not have the domain.
    """
    evaluated = pipeline.evaluate
    if trajectory.split is Split.EVALUATION and evaluated is not None:
        found: dict[str, Domain] = {domain.name: domain for domain in evaluated.domains}
        node: GeneratingNode | None = evaluated
    else:
        found = {domain.name: domain for domain in pipeline.task_domains}
        node = None if pipeline.offline else pipeline.rollout
    if node is not None and trajectory.domain in found:
        return found[trajectory.domain], node
    raise SettingsError(
        f"trajectory {trajectory.trajectory_id} is of domain {trajectory.domain!r}, "
        "which the run's pipeline does not have"
    )


def score_tokens(
    run: Run, pipeline: Pipeline, trajectory: Trajectory
) -> tuple[tuple[ScoredToken, ...], str | None]:
    """Return (rescored tokens, None), or ((), reason) if they cannot be scored again."""
    try:
        return tuple(score_again(run, pipeline, trajectory)), None
    except (WeightsError, TrainerError) as error:
        return (), error.message


async def reward_again(
    pipeline: Pipeline, attempt: Sequence[Trajectory], source: Path
) -> Trajectory:
    """Return an attempt as one trajectory, with its reward computed again."""
    function, timeout_s = pipeline.reward_in(attempt[0].domain)
    return await score(unscored(whole(attempt)), function, timeout_s, source)
