"""What the scheduler is told once: its settings, and where tasks come from."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from rollart_flow.errors import RunFailedError, SettingsError
from rollart_flow.types import Assignment, Sampling, Task


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How groups are admitted and how much goes into them.

    Raises:
        SettingsError: names the setting that is out of range.
    """

    batch_size: int
    """Trajectories per training step, a multiple of `group_size`."""
    group_size: int
    """Trajectories per task that are trained together."""
    redundancy: int = 0
    """Extra attempts per group; the slowest are cancelled once the group is complete."""
    extra_groups: int = 0
    """Groups in flight beyond what the bound's capacity gives."""
    max_attempts: int | None = None
    """Attempts after which an incomplete group is abandoned; default three per member."""
    breaker: int | None = None
    """Failures in a row of one domain that fail the run; default max(32, 2 * group_size)."""
    refusals: int | None = None
    """Trajectories that filters refuse between two batches that fail the run; default
    max(1000, 16 * batch_size)."""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    """Seed of the environments' seeds."""
    history: int = 10_000
    """Answers to sources that are remembered."""

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise SettingsError(f"group_size is {self.group_size}, but must be at least 1")
        if self.batch_size < 1 or self.batch_size % self.group_size:
            raise SettingsError(
                f"batch_size is {self.batch_size}, "
                f"but must be a multiple of group_size {self.group_size}"
            )
        for name in ("redundancy", "extra_groups"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}, but must be at least 0")
        if self.attempts_limit < self.launched:
            raise SettingsError(
                f"max_attempts is {self.max_attempts}, but a group starts with {self.launched}"
            )
        if self.failures_limit < 1:
            raise SettingsError(f"breaker is {self.breaker}, but must be at least 1")
        if self.refusals_limit < 1:
            raise SettingsError(f"refusals is {self.refusals}, but must be at least 1")

    @property
    def launched(self) -> int:
        """Attempts that a group starts with."""
        return self.group_size + self.redundancy

    @property
    def attempts_limit(self) -> int:
        """Most attempts of one group."""
        if self.max_attempts is None:
            return 3 * self.group_size + self.redundancy
        return self.max_attempts

    @property
    def failures_limit(self) -> int:
        """Most failures in a row of one domain."""
        return max(32, 2 * self.group_size) if self.breaker is None else self.breaker

    @property
    def refusals_limit(self) -> int:
        """Most trajectories that filters refuse between two batches."""
        return max(1_000, 16 * self.batch_size) if self.refusals is None else self.refusals

    def assignment(self, group_id: str, task: Task, attempt: int) -> Assignment:
        """One attempt. All attempts of a group start their environment from the same seed."""
        return Assignment(
            trajectory_id=f"{group_id}-{attempt:02d}",
            group_id=group_id,
            task=task,
            attempt=attempt,
            env_seed=env_seed(self.seed, group_id),
            sampling=self.sampling,
        )


def env_seed(*parts: object) -> int:
    """A seed of 31 bits from what names an episode; equal for equal names in every process."""
    name = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") >> 1


def group_name(cursor: int) -> str:
    """Id of the group that is admitted at a cursor of the tasks: the same after a restart."""
    return f"g{cursor:08d}"


def group_cursor(group_id: str) -> int:
    """The cursor that a group was admitted at."""
    return int(group_id.removeprefix("g"))


class TaskIntake:
    """The tasks of a run, each with the cursor that it has in its source.

    Args:
        tasks: (task, cursor) pairs with growing cursors, from where an earlier scheduler stopped.
    """

    def __init__(self, tasks: Iterator[tuple[Task, int]]) -> None:
        self._tasks = tasks
        self._cursor: int | None = None
        self.exhausted = False

    def take(self) -> tuple[Task, int] | None:
        """The next task and its cursor, or None where there are no more.

        Raises:
            RunFailedError: the source raised or its cursors do not grow.
        """
        try:
            task, cursor = next(self._tasks)
        except StopIteration:
            self.exhausted = True
            return None
        except RunFailedError:
            raise
        except Exception as error:  # users write task sources; whatever they raise ends the run
            raise RunFailedError(f"the tasks raised {type(error).__name__}: {error}") from error
        if self._cursor is not None and cursor <= self._cursor:
            raise RunFailedError(
                f"the tasks' cursor went from {self._cursor} to {cursor}, but must grow"
            )
        self._cursor = cursor
        return task, cursor
