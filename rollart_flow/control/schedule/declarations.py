"""Declarations of a schedule about the phases of a step and about concurrent attempts."""

from dataclasses import dataclass, fields
from enum import StrEnum

from rollart_flow.errors import SettingsError


class Phase(StrEnum):
    """Phases of a training step in the control plane."""

    GET_BATCH = "get_batch"
    SUSPEND = "suspend"
    UPDATE = "update"
    RESUME = "resume"
    TRAIN = "train"


SIX_STEPS = (Phase.GET_BATCH, Phase.SUSPEND, Phase.UPDATE, Phase.RESUME, Phase.TRAIN)
"""Protocol of ROLLART section 6.2; its fifth step, recompute, happens when the engines resume."""

SYNCHRONOUS = (Phase.GET_BATCH, Phase.SUSPEND, Phase.TRAIN, Phase.UPDATE, Phase.RESUME)
"""Order of ROLL Flash section 4.2: rollout is suspended right after get_batch, until the weights
are updated."""


SWAP_FIRST = (Phase.GET_BATCH, Phase.TRAIN, Phase.SUSPEND, Phase.UPDATE, Phase.RESUME)
"""Order of ROLL Flash section 4.2 with overlap: the weights are exchanged as soon as they are
trained, so that the next batch is formed under the version that it trains."""


class Swap(StrEnum):
    """Time at which the engines swap to the newest weights, relative to the training of a batch."""

    FIRST = "first"
    """A batch is formed once the engines have swapped to the weights that it trains; they generate
    during training."""
    BEFORE = "before"
    """A formed batch is trained once the engines have swapped to the weights that it trains."""
    BESIDE = "beside"
    """A formed batch is trained at once, while the engines swap."""
    AFTER = "after"
    """The engines are suspended during training, and swap to the weights that it produced."""

    @property
    def order(self) -> tuple[Phase, ...]:
        """All phases of a step, in order; with BESIDE, those between GET_BATCH and TRAIN overlap
        TRAIN."""
        if self is Swap.FIRST:
            return SWAP_FIRST
        return SYNCHRONOUS if self is Swap.AFTER else SIX_STEPS


class Barrier(StrEnum):
    """Point at which the attempts of one process wait for one another."""

    TURNS = "turns"
    """Before each turn, so that the environments of the process step together."""
    ENDS = "ends"
    """After its end, each attempt waits until all have ended, and only then are they scored (batch
    rollout in ROLL Flash section 5.1.1, in contrast to queue scheduling)."""


class Overdue(StrEnum):
    """Treatment of attempts in flight that would be too old for the next version."""

    ABORT = "abort"
    """They are aborted at the update that makes them too old."""
    AWAIT = "await"
    """The next batch waits for them, so that none is aborted, but for as many slow groups as
    `extra_groups` stand in for, and a few groups that lack only attempts in place of failed ones
    (`control.scheduler.lifecycle`)."""


class GroupPlacement(StrEnum):
    """Choice of the inference workers that decode the attempts of a group."""

    SPREAD = "spread"
    """Each attempt is placed independently (prompt replication, ROLL Flash section 5.1.2)."""
    TOGETHER = "together"
    """One worker decodes them all, as with num_return_sequences > 1."""


class Devices(StrEnum):
    """Devices on which the engines compute."""

    OWN = "own"
    """Engines have devices of their own."""
    SHARED = "shared"
    """Engines are on the trainer's devices, and free the memory that only generation needs while
    they are suspended."""


@dataclass(frozen=True, slots=True)
class StageSizes:
    """Largest number of attempts of one process in each stage at once.

    Raises:
        SettingsError: names the size that is not a positive whole number.
    """

    init: int
    """Environments that are reset."""
    run: int
    """Attempts that generate and step; as many more may wait with their environment ready."""
    reward: int
    """Trajectories that are scored."""

    def __post_init__(self) -> None:
        for field in fields(self):
            size = getattr(self, field.name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise SettingsError(
                    f"stage {field.name} has {size!r} places, "
                    "but must have a whole number of at least 1"
                )
