"""Re-run of a stored trajectory's environment with the recorded actions.

The environment is opened in the same way as during rollout, and reset with the recorded seed and
task. Only steps with a recorded answer are repeated: the last action of an attempt that failed,
timed out, or was cancelled has no answer.
"""

from dataclasses import dataclass
from pathlib import Path

from rollart_flow.control.protocols import AsyncEnvironment
from rollart_flow.control.rollout.conversing import made, with_refusals
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain, Info
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError
from rollart_flow.replay.spoken import recorded_turns, shown_text
from rollart_flow.types import TRAINABLE, Reason, Trajectory

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


async def run_again(
    domain: Domain, trajectory: Trajectory, *, timeout_s: float, source: Path | None
) -> Episode:
    """Run the environment through the turns of a trajectory, until it ends or fails.

    Args:
        timeout_s: time limit of the reset and of each step [s].
        source: pipeline file, for a domain that cannot be imported by name.
    """
    environment = open_environment(domain, timeout_s=timeout_s, source=source)
    episode = _Recorder()
    error = None
    try:
        await _drive(environment, trajectory, episode)
    except (EnvironmentFailedError, EnvironmentTimeoutError) as failure:
        error = failure.message
    finally:
        await environment.close()
    observations, answers = tuple(episode.observations), tuple(episode.answers)
    return Episode(observations, answers, episode.solved, error)


class _Recorder:
    """Observations and answers so far, which remain available if the environment fails."""

    def __init__(self) -> None:
        self.observations: list[str] = []
        """As `shown_text`."""
        self.answers: list[StoredAnswer] = []
        self.solved: bool | None = None

    def answer(self, reward: float, terminated: bool, truncated: bool, info: Info) -> None:
        self.answers.append(StoredAnswer(reward, terminated, truncated))
        if "success" in info:
            self.solved = bool(info["success"])


async def _drive(environment: AsyncEnvironment, trajectory: Trajectory, episode: _Recorder) -> None:
    if not trajectory.turns:
        return
    observation, _ = await environment.reset(trajectory.env_seed, trajectory.task)
    text_only = trajectory.tools is None
    for index, turn in enumerate(recorded_turns(trajectory)):
        episode.observations.append(shown_text(observation))
        if turn.action is None or not answered(trajectory, index):
            return
        makes = made(turn.action)
        if turn.action.tool_calls and not makes.tool_calls:
            observation = with_refusals(turn.action, ())
            episode.answer(0.0, terminated=False, truncated=False, info={})
            continue
        observation, reward, terminated, truncated, info = await environment.step(
            turn.action.text if text_only else makes
        )
        observation = with_refusals(turn.action, observation)
        episode.answer(reward, terminated, truncated, info)
        if terminated or truncated:
            return
