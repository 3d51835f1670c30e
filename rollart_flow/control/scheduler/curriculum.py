"""Curriculum: admission of tasks by their recent success rate.

Groups of tasks that are never or always solved have rewards without variance, and thus no learning
signal. Tasks are therefore assigned to pools of difficulty, and a share of each pool is admitted.
Skipped tasks keep their cursors, so that a cursor still marks the position of a run. The invariant:
the admission of a task is a function of the seed, its cursor and the recorded successes; at least
one of `draws` consecutive tasks is admitted; memory use is bounded.

The method follows the difficulty-based sampling of WebRL (arXiv:2411.02337).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from rollart_flow.control.ids import env_seed
from rollart_flow.errors import SettingsError
from rollart_flow.types import TRAINABLE, Sample, Task

_TASKS = 65_536
"""Number of remembered tasks."""


class CandidatePool(StrEnum):
    """Difficulty of a task for the recent policies."""

    NEW = "new"
    """The task has no recent attempt that was scored."""
    HARD = "hard"
    MEDIUM = "medium"
    EASY = "easy"


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Settings of `tasks`. New and medium tasks are always admitted.

    Tasks of a domain that never repeats a task are always new and thus always admitted. A skipped
    task is replaced by the next task, of any domain.

    Raises:
        SettingsError: names the setting that is out of range.
    """

    hard_below: float = 0.2
    """A task that was solved less often than this is hard."""
    easy_above: float = 0.8
    """A task that was solved more often than this is easy."""
    hard: float = 0.5
    """Share of hard tasks that is admitted."""
    easy: float = 0.25
    """Share of easy tasks that is admitted."""
    window: int = 16
    """Number of newest attempts at a task that determine its success rate."""
    draws: int = 64
    """Number of consecutive tasks of which at least one is admitted, whatever the shares."""

    def __post_init__(self) -> None:
        for name in ("hard_below", "easy_above", "hard", "easy"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise SettingsError(f"{name}={value!r}: expected a number from 0 to 1")
        if self.hard_below > self.easy_above:
            raise SettingsError(
                f"hard_below={self.hard_below}: expected at most easy_above={self.easy_above}"
            )
        for name in ("window", "draws"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SettingsError(f"{name}={value!r}: expected a whole number of at least 1")

    def pool(self, rate: float | None) -> CandidatePool:
        """Return the pool for a success rate; None means no recent attempt."""
        if rate is None:
            return CandidatePool.NEW
        if rate < self.hard_below:
            return CandidatePool.HARD
        return CandidatePool.EASY if rate > self.easy_above else CandidatePool.MEDIUM

    def share(self, pool: CandidatePool) -> float:
        """Return the share of a pool's tasks that is admitted."""
        return {CandidatePool.HARD: self.hard, CandidatePool.EASY: self.easy}.get(pool, 1.0)


class Successes:
    """Success rates over the newest attempts at each task.

    Args:
        window: number of remembered attempts per task.
        recorded: trajectories from the tables, in commit order.
    """

    def __init__(self, window: int, recorded: Iterable[Sample] = ()) -> None:
        self._window = window
        self._tasks: OrderedDict[str, OrderedDict[str, bool]] = OrderedDict()
        for sample in recorded:
            self.note(sample)

    def note(self, sample: Sample) -> None:
        """Record an attempt if it is known whether the attempt solved its task.

        Recording an attempt again has no effect.
        """
        if sample.solved is None or sample.outcome not in TRAINABLE:
            return
        attempts = self._tasks.setdefault(sample.task_id, OrderedDict())
        self._tasks.move_to_end(sample.task_id)
        attempts.setdefault(sample.trajectory_id, sample.solved)
        if len(attempts) > self._window:
            attempts.popitem(last=False)
        if len(self._tasks) > _TASKS:
            self._tasks.popitem(last=False)

    def rate(self, task_id: str) -> float | None:
        """Return the success rate of the newest attempts at a task, or None without attempts."""
        attempts = self._tasks.get(task_id)
        return sum(attempts.values()) / len(attempts) if attempts else None


def by_difficulty(
    tasks: Iterable[tuple[Task, int] | None],
    curriculum: Curriculum,
    successes: Successes,
    seed: int,
) -> Iterator[tuple[Task, int] | None]:
    """Yield the admitted tasks with their cursors, deciding on each task lazily.

    Args:
        tasks: (task, cursor) pairs, and None for a task to come, which is passed on.
        curriculum: settings.
        successes: success rates, which the caller may update between tasks.
        seed: seed of the random choice.
    """
    skipped = 0
    for each in tasks:
        if each is None:
            yield None
            continue
        task, cursor = each
        share = curriculum.share(curriculum.pool(successes.rate(task.task_id)))
        chance = env_seed("curriculum", seed, cursor) / 2**31
        if chance < share or skipped + 1 >= curriculum.draws:
            skipped = 0
            yield task, cursor
        else:
            skipped += 1
