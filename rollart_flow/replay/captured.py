"""Replay of a captured attempt: its calls, the logprobs of its tokens, and its reward.

The calls are rendered and parsed again (`replay.exchanges`). Then each action token is scored under
its recorded policy version, and the reward function judges the stored attempt again, as in the
replay of an attempt of an environment. The environment's own judgement, made in a box that is gone,
is not repeated; `--harness` runs the program again.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rollart_flow.pipeline import Pipeline
from rollart_flow.replay.compare import logprob_difference, reward_difference
from rollart_flow.replay.exchanges import SessionReplay
from rollart_flow.replay.logprobs import TOLERANCE
from rollart_flow.replay.run_exchanges import replay_calls
from rollart_flow.replay.stored_attempts import read_attempt
from rollart_flow.replay.trajectory import reward_again, score_tokens
from rollart_flow.runner.retrain import stored_pipeline
from rollart_flow.store import Run
from rollart_flow.store.cache import local_file
from rollart_flow.store.layout import has_pipeline, pipeline_uri
from rollart_flow.types import Trajectory


@dataclass(frozen=True, slots=True)
class CapturedReplay:
    """Result of replaying a captured attempt."""

    calls: SessionReplay
    divergence: str | None
    """The first divergence, in one line; None if there is none."""
    scored_tokens: int | None = None
    """Tokens whose logprobs were recomputed; None where no pipeline says how the run scores."""


def replay_captured(run_uri: str, trajectory_id: str) -> CapturedReplay:
    """Replay the calls of an attempt and, if the run has a pipeline, score it again.

    Raises:
        RunNotFoundError: there is no such run.
        StoreError, PipelineError: the run's pipeline cannot be built on this machine.
        SettingsError: there is no such trajectory, or it is none of a captured agent.
    """
    calls = replay_calls(run_uri, trajectory_id)
    if calls.difference is not None:
        return CapturedReplay(calls, str(calls.difference))
    if not has_pipeline(run_uri):
        return CapturedReplay(calls, None)
    run = Run(run_uri)
    attempt, _ = read_attempt(run, trajectory_id)
    tokens, divergence = score_attempt(run, stored_pipeline(run), attempt)
    return CapturedReplay(calls, divergence, tokens)


def score_attempt(
    run: Run, pipeline: Pipeline, attempt: Sequence[Trajectory]
) -> tuple[int, str | None]:
    """Score the action tokens of all branches, and compute the reward of the attempt again.

    Returns:
        The number of scored tokens, and the first divergence in one line, or None.
    """
    count, tolerance = 0, TOLERANCE[pipeline.policy.computes_in]
    for row in attempt:
        tokens, unscored = score_tokens(run, pipeline, row)
        count += len(tokens)
        if unscored is not None:
            return count, f"{row.trajectory_id}: logprobs cannot be compared: {unscored}"
        if (wrong := logprob_difference(tokens, tolerance)) is not None:
            return count, f"{row.trajectory_id}{wrong}"
    if attempt[0].reward is None:
        return count, None
    with ThreadPoolExecutor(1) as thread:  # the caller may have a running loop (a notebook)
        scoring = reward_again(pipeline, attempt, local_file(pipeline_uri(run.uri)))
        scored = thread.submit(asyncio.run, scoring).result()
    return count, reward_difference(attempt[0], scored)
