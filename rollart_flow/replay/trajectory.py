"""Re-run a stored trajectory: its environment, its reward, and the logprobs of its tokens.

Works on whatever outcome, up to what was recorded: of an attempt that failed or was cancelled, the
turns that it has. What is compared, and in which order, is in `replay.compare`.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from rollart_flow.envs.base import Domain
from rollart_flow.errors import SettingsError, TrainerError, WeightsError
from rollart_flow.models.policy import load_codec
from rollart_flow.pipeline import Pipeline
from rollart_flow.pipeline.nodes import GeneratingNode
from rollart_flow.replay.compare import Replay, first_divergence, turn_reports
from rollart_flow.replay.episode import Episode, run_again
from rollart_flow.replay.logprobs import TOLERANCE, ScoredToken, score_again
from rollart_flow.rewards.base import environment_reward
from rollart_flow.rewards.score import score
from rollart_flow.rows import trajectory_from_row
from rollart_flow.runner.retrain import stored_pipeline
from rollart_flow.store import Run
from rollart_flow.store.cache import local_file
from rollart_flow.store.layout import pipeline_uri, policy_uri
from rollart_flow.types import Split, Trajectory
from rollart_flow.weights.folder_store import local_path


@dataclass(frozen=True, slots=True)
class TrajectoryReplay:
    """A trajectory as it was recorded and as it went again."""

    trajectory_id: str
    equal: bool
    divergence: str | None
    """The first one in one line: turn, token where there is one, recorded and replayed value."""
    turns: list[dict[str, Any]]
    """By turn, see `compare.turn_reports`."""


def replay_trajectory(run_uri: str, trajectory_id: str) -> TrajectoryReplay:
    """Re-run a trajectory with its recorded actions, and score it again.

    The environment gets the recorded seed and task; each token is scored under the version that
    drew it, which is trained again from a checkpoint where it is not kept any more.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: there is no such trajectory, or its domain is not in the stored pipeline.
    """
    run = Run(run_uri)
    trajectory = _read(run, trajectory_id)
    pipeline = stored_pipeline(run)
    domain, node = _domain(pipeline, trajectory)
    tokens, unscored = _score_tokens(run, pipeline, trajectory)
    # The environment needs a loop of its own, also where the caller has one running (a notebook).
    with ThreadPoolExecutor(1) as thread:
        source = local_file(pipeline_uri(run.uri))
        going = _go_again(pipeline, domain, node, trajectory, source)
        episode, scored = thread.submit(asyncio.run, going).result()
    replayed = Replay(
        trajectory=trajectory,
        episode=episode,
        codec=load_codec(local_path(policy_uri(run.uri))),
        max_turns=node.turns(domain),
        tokens=tokens,
        unscored=unscored,
        tolerance=TOLERANCE[pipeline.policy.computes_in],
        scored=scored,
    )
    divergence = first_divergence(replayed)
    version = domain.environment.version
    if divergence is not None and version != trajectory.env_version:
        divergence += f" (environment {trajectory.env_version} then, {version} now)"
    return TrajectoryReplay(trajectory_id, divergence is None, divergence, turn_reports(replayed))


def _read(run: Run, trajectory_id: str) -> Trajectory:
    mine = pl.col("trajectory_id") == trajectory_id
    rows = run.trajectories.filter(mine).sort("seq").head(1).collect().to_dicts()
    if not rows:
        raise SettingsError(f"no trajectory {trajectory_id!r} in run {run.info.name}")
    return trajectory_from_row(rows[0])


def _domain(pipeline: Pipeline, trajectory: Trajectory) -> tuple[Domain, GeneratingNode]:
    """The domain that ran it, and the node that it ran in."""
    found: tuple[Domain, ...] = pipeline.tasks.domains
    node: GeneratingNode = pipeline.rollout
    if trajectory.split is Split.EVALUATION and pipeline.evaluate is not None:
        found, node = pipeline.evaluate.domains, pipeline.evaluate
    for domain in found:
        if domain.name == trajectory.domain:
            return domain, node
    raise SettingsError(
        f"trajectory {trajectory.trajectory_id} is of domain {trajectory.domain!r}, "
        "which the run's pipeline does not have"
    )


def _score_tokens(
    run: Run, pipeline: Pipeline, trajectory: Trajectory
) -> tuple[tuple[ScoredToken, ...], str | None]:
    """(the generated tokens scored again, why not)."""
    try:
        return tuple(score_again(run, pipeline, trajectory)), None
    except (WeightsError, TrainerError) as error:
        return (), error.message


async def _go_again(
    pipeline: Pipeline, domain: Domain, node: GeneratingNode, trajectory: Trajectory, source: Path
) -> tuple[Episode, Trajectory | None]:
    """(the episode, the trajectory scored again if it ever was)."""
    episode = await run_again(domain, trajectory, timeout_s=node.step_timeout_s, source=source)
    if trajectory.reward is None:
        return episode, None
    function = pipeline.reward.fn or environment_reward
    unscored = replace(trajectory, reward=None, reward_parts=None, scored_at=None)
    return episode, await score(unscored, function, pipeline.reward.timeout_s, source)
