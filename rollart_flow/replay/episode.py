"""Re-run the environment of a stored trajectory with the actions that were recorded.

The environment is opened as the rollout opens it, and reset with the recorded seed and task. Only
steps whose answers were recorded are asked for again: the last action of an attempt that failed,
timed out or was cancelled has none.
"""

from dataclasses import dataclass
from pathlib import Path

from rollart_flow.control.protocols import AsyncEnvironment
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain, Info
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError
from rollart_flow.types import TRAINABLE, Reason, Trajectory

REWARD_FAILED = frozenset({Reason.REWARD_ERROR, Reason.REWARD_TIMEOUT, Reason.REWARD_NOT_FINITE})
"""Reasons that came after the episode, whose every step was answered."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What the environment answered to an action."""

    reward: float
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class Episode:
    """What the environment did when it was run again."""

    observations: tuple[str, ...]
    """Before each action, in order; fewer than were recorded where it ended early."""
    answers: tuple[StoredAnswer, ...]
    """To each action whose answer was recorded."""
    solved: bool | None
    """What `info["success"]` said last."""
    error: str | None
    """Why it went no further, where it failed."""


def answered(trajectory: Trajectory, turn: int) -> bool:
    """Whether the environment's answer to the action of a turn was recorded."""
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
        domain: the one that the trajectory is of.
        trajectory: as it is stored.
        timeout_s: of reset and each step.
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
    """What was seen so far, kept also where the environment fails."""

    def __init__(self) -> None:
        self.observations: list[str] = []
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
    for index, turn in enumerate(trajectory.turns):
        episode.observations.append(observation)
        if not answered(trajectory, index):
            return
        observation, reward, terminated, truncated, info = await environment.step(turn.action)
        episode.answer(reward, terminated, truncated, info)
        if terminated or truncated:
            return
