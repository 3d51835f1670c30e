"""A curriculum: which of the tasks that come up are admitted, by how often they were solved lately.

Tasks that are never or always solved have groups without variance, which teach nothing; those in
between teach most. So tasks are in pools of difficulty, and of each pool a share is admitted. What
is skipped keeps its cursor, so that a cursor still says where a run stands. The invariant: whether
a task is admitted is a function of the seed, its cursor and the recorded successes; something is
admitted after at most `draws` tasks, whatever they are; what is remembered is bounded.

Source: difficulty-based sampling of agentic RL (WebRL, 2411.02337, study notes in seed 004).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from rollart_flow.control.ids import env_seed
from rollart_flow.errors import SettingsError
from rollart_flow.types import TRAINABLE, Sample, Task

_TASKS = 65_536
"""Tasks that are remembered."""


class CandidatePool(StrEnum):
    """How difficult a task is for the policy of late."""

    NEW = "new"
    """It has no recent attempt that was scored."""
    HARD = "hard"
    MEDIUM = "medium"
    EASY = "easy"


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Settings of `tasks`. New and medium tasks are always admitted.

    Domains whose tasks never come up twice have no recent attempts, so that nothing changes for
    them. What is skipped leaves its turn to the next task, of whatever domain.

    Raises:
        SettingsError: names the setting that is out of range.
    """

    hard_below: float = 0.2
    """A task that was solved less often than this is hard."""
    easy_above: float = 0.8
    """A task that was solved more often than this is easy."""
    hard: float = 0.5
    """Share of hard tasks that is admitted as they come up."""
    easy: float = 0.25
    """Share of easy ones."""
    window: int = 16
    """Newest attempts at a task that count."""
    draws: int = 64
    """One of so many tasks in a row is admitted, however few shares allow."""

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
        """The pool of a task that was solved so often; None: it has no recent attempt."""
        if rate is None:
            return CandidatePool.NEW
        if rate < self.hard_below:
            return CandidatePool.HARD
        return CandidatePool.EASY if rate > self.easy_above else CandidatePool.MEDIUM

    def share(self, pool: CandidatePool) -> float:
        """Share of a pool's tasks that is admitted."""
        return {CandidatePool.HARD: self.hard, CandidatePool.EASY: self.easy}.get(pool, 1.0)


class Successes:
    """The newest attempts at each task.

    Args:
        window: attempts of a task that are remembered.
        recorded: what the tables have, in the order of its commits.
    """

    def __init__(self, window: int, recorded: Iterable[Sample] = ()) -> None:
        self._window = window
        self._tasks: OrderedDict[str, OrderedDict[str, bool]] = OrderedDict()
        for sample in recorded:
            self.note(sample)

    def note(self, sample: Sample) -> None:
        """Take note of an attempt, where it is known whether it solved its task.

        Once too often does no harm.
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
        """Share of the newest attempts at a task that solved it; None: there is none."""
        attempts = self._tasks.get(task_id)
        return sum(attempts.values()) / len(attempts) if attempts else None


def by_difficulty(
    tasks: Iterable[tuple[Task, int]], curriculum: Curriculum, successes: Successes, seed: int
) -> Iterator[tuple[Task, int]]:
    """The tasks that are admitted, with their cursors; each is decided when it is asked for.

    Args:
        tasks: (task, cursor) pairs.
        curriculum: settings.
        successes: what is known when a task is asked for; others add to it.
        seed: of the choice.
    """
    skipped = 0
    for task, cursor in tasks:
        share = curriculum.share(curriculum.pool(successes.rate(task.task_id)))
        chance = env_seed("curriculum", seed, cursor) / 2**31
        if chance < share or skipped + 1 >= curriculum.draws:
            skipped = 0
            yield task, cursor
        else:
            skipped += 1
