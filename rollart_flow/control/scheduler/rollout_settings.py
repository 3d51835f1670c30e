"""Settings of the RolloutScheduler: how groups are admitted and how large they are."""

from dataclasses import dataclass, field

from rollart_flow.control.ids import env_seed
from rollart_flow.errors import SettingsError
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
