"""Settings of the RolloutScheduler: how groups are admitted and how large they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollart_flow.control.ids import env_seed
from rollart_flow.errors import SettingsError
from rollart_flow.types import Assignment, Sampling, Task


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings for the admission and the size of groups.

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
    """Groups in flight beyond the capacity of the bound."""
    ahead: int | None = None
    """Most attempts whose environments are reset before their group is admitted, where the
    schedule has any; by default `batch_size`. What an attempt that is ready may hold while it
    waits, such as a place in a process, must be there once more than so often."""
    extra_environments: int = 0
    """Attempts that are reset ahead beside as many in flight as the credits stand for; all others
    take the places of attempts that have ended."""
    max_attempts: int | None = None
    """Attempts after which an incomplete group is abandoned; by default three per member, plus
    `redundancy`."""
    breaker: int | None = None
    """Consecutive failures of one domain that fail the run; default max(32, 2 * group_size)."""
    refusals: int | None = None
    """Filtered trajectories between two batches that fail the run; default
    max(1000, 16 * batch_size)."""
    sampling: Sampling = field(default_factory=Sampling)
    own_sampling: Mapping[str, Sampling] = field(default_factory=dict)
    """Sampling of tokens in some domains; all others have that of `sampling`."""
    seed: int = 0
    """Seed from which the environments' seeds are derived."""
    history: int = 50_000
    """Number of attempts whose assignment to a source is remembered."""

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise SettingsError(f"group_size is {self.group_size}, but must be at least 1")
        if self.batch_size < 1 or self.batch_size % self.group_size:
            raise SettingsError(
                f"batch_size is {self.batch_size}, "
                f"but must be a multiple of group_size {self.group_size}"
            )
        for name in ("redundancy", "extra_groups", "ahead", "extra_environments"):
            if (getattr(self, name) or 0) < 0:
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
    def groups_per_batch(self) -> int:
        """Number of groups in a batch."""
        return self.batch_size // self.group_size

    @property
    def launched(self) -> int:
        """Number of attempts that a group starts with."""
        return self.group_size + self.redundancy

    @property
    def most_ahead(self) -> int:
        """Largest number of attempts that are reset before their group is admitted."""
        return self.batch_size if self.ahead is None else self.ahead

    @property
    def attempts_limit(self) -> int:
        """Largest number of attempts of one group."""
        if self.max_attempts is None:
            return 3 * self.group_size + self.redundancy
        return self.max_attempts

    @property
    def failures_limit(self) -> int:
        """Number of consecutive failures of one domain that fails the run."""
        return max(32, 2 * self.group_size) if self.breaker is None else self.breaker

    @property
    def refusals_limit(self) -> int:
        """Number of filtered trajectories between two batches that fails the run."""
        return max(1_000, 16 * self.batch_size) if self.refusals is None else self.refusals

    def assignment(self, group_id: str, task: Task, attempt: int) -> Assignment:
        """Return one attempt of a group; its attempts share one environment seed."""
        return Assignment(
            trajectory_id=f"{group_id}-{attempt:02d}",
            group_id=group_id,
            task=task,
            attempt=attempt,
            env_seed=env_seed(self.seed, group_id),
            sampling=self.own_sampling.get(task.domain, self.sampling),
        )
