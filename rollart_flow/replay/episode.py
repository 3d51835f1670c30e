"""Re-run of a stored trajectory's environment with the recorded actions.

The environment is opened in the same way as during rollout, and reset with the recorded seed and
task. It gets the actions of all branches of the attempt, in their true order. Only steps with a
recorded answer are repeated: the last action of an attempt that failed, timed out, or was
cancelled has no answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollart_flow.control.environment import AsyncEnvironment, Codec, may_converse
from rollart_flow.control.rollout.dialogue import Dialogue
from rollart_flow.control.rollout.env_checks import StepAnswer, checked_step
from rollart_flow.control.rollout.interrupts import AttemptEndedError
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError
from rollart_flow.replay.spoken import RecordedTurn, recorded_turns, shown_text
from rollart_flow.types import (
    TRAINABLE,
    Action,
    AttemptLimits,
    FinishReason,
    Generation,
    Reason,
    Trajectory,
)
from rollart_flow.types.branching import StepObservation
from rollart_flow.types.messages import messages_of

REWARD_FAILED = frozenset({Reason.REWARD_ERROR, Reason.REWARD_TIMEOUT, Reason.REWARD_NOT_FINITE})
"""Failure reasons that arise after the episode, when every step already has an answer."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The environment's answer to one action."""

    reward: float
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class Episode:
    """Observations and answers of the environment in a replay."""

    observations: tuple[str, ...]
    """Observation before each action, in order; fewer than recorded if the replay ended early."""
    answers: tuple[StoredAnswer, ...]
    """Replayed answer to each action whose answer was recorded."""
    solved: bool | None
    """Last value of `info["success"]`, or None if the environment never set it."""
    error: str | None
    """Error message if the environment failed, else None."""


def answered(trajectory: Trajectory, turn: int) -> bool:
    """Return whether the environment's answer to the action of a turn was recorded."""
    if turn + 1 < len(trajectory.turns) or trajectory.reason in REWARD_FAILED:
        return True
    last = trajectory.turns[turn]
    generated = any(trajectory.action_mask[last.start : last.end])
    return trajectory.outcome in TRAINABLE and generated


def in_order(attempt: Sequence[Trajectory]) -> list[tuple[Trajectory, int, RecordedTurn]]:
    """Return (branch, index in the branch, turn) of all turns of an attempt, in true order."""
    turns = [
        (branch, index, turn)
        for branch in attempt
        for index, turn in enumerate(recorded_turns(branch))
    ]
    return sorted(turns, key=lambda each: each[2].number)


async def run_again(
    domain: Domain,
    attempt: Sequence[Trajectory],
    branch: Trajectory,
    codec: Codec,
    limits: AttemptLimits,
    *,
    source: Path | None,
) -> Episode:
    """Run the environment through all turns of an attempt, until it ends or fails.

    Args:
        domain: domain of the attempt.
        attempt: branches of the attempt.
        branch: the branch whose observations and answers are returned.
        codec: codec of the policy.
        limits: limits of the attempt.
        source: pipeline file, for a domain that cannot be imported by name.
    """
    environment = _StepsAgain(
        open_environment(domain, timeout_s=limits.step_timeout_s, source=source)
    )
    episode = _Recorder()
    error = None
    try:
        await _drive(environment, Dialogue(codec, limits), attempt, branch, episode)
    except (EnvironmentFailedError, EnvironmentTimeoutError) as failure:
        error = failure.message
    except AttemptEndedError as ended:
        error = ended.ending.error or f"the attempt ended: {ended.ending.reason}"
    finally:
        await environment.inner.close()
    observations, answers = tuple(episode.observations), tuple(episode.answers)
    return Episode(observations, answers, environment.solved, error)


class _StepsAgain:
    """An environment, as a dialogue takes it, with what it says about success."""

    call_s = 0.0

    def __init__(self, inner: AsyncEnvironment) -> None:
        self.inner = inner
        self.solved: bool | None = None

    async def step(self, action: str | Action) -> StepAnswer:
        answer = checked_step(await self.inner.step(action))
        if "success" in answer.info:
            success = answer.info["success"]
            self.solved = None if success is None else bool(success)
        return answer


class _Recorder:
    """Observations and answers so far, which remain available if the environment fails."""

    def __init__(self) -> None:
        self.observations: list[str] = []
        """As `shown_text`."""
        self.answers: list[StoredAnswer] = []


async def _drive(
    environment: _StepsAgain,
    dialogue: Dialogue,
    attempt: Sequence[Trajectory],
    branch: Trajectory,
    episode: _Recorder,
) -> None:
    turns = in_order(attempt)
    if not turns:
        return
    first, inner = attempt[0], environment.inner
    observation: StepObservation
    observation, _ = await inner.reset(first.env_seed, first.task)
    dialogue.begin(observation, inner.tools if may_converse(inner) else None)
    for place, (row, index, turn) in enumerate(turns, 1):
        mine = row is branch
        if mine and isinstance(observation, str) and row.messages is None:
            episode.observations.append(observation)
        dialogue.observe(turn.number, observation)
        if mine and row.messages is not None:
            shown = dialogue.recorder.own[-1].observation
            episode.observations.append(shown_text(messages_of(shown)))
        if turn.action is None or (place == len(turns) and not answered(row, index)):
            return
        answer = await dialogue.answer(environment, dialogue.act(_generation(row, index), 0.0))
        observation, reward, terminated, truncated, _ = answer
        if mine:
            episode.answers.append(StoredAnswer(reward, terminated, truncated))
        if terminated or truncated:
            return


def _generation(trajectory: Trajectory, index: int) -> Generation:
    """Return the generation of a stored turn, as far as a dialogue needs it."""
    turn = trajectory.turns[index]
    places = [at for at in range(turn.start, turn.end) if trajectory.action_mask[at]]
    return Generation(
        tuple(trajectory.token_ids[at] for at in places),
        tuple(trajectory.logprobs[at] for at in places),
        tuple(trajectory.token_versions[at] for at in places),
        FinishReason(turn.finish_reason),
    )
