"""Sizes of the bounded stages of a rollout, which a schedule may set (`control.rollout.stages`)."""

from dataclasses import dataclass, fields

from rollart_flow.errors import SettingsError


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
