"""The description of a trainer: its class, its capabilities and its packages; loads no torch.

To add a trainer: its module, its `TrainerVariant`, its name in `trainers.registry`, and an extra in
`pyproject.toml` if it needs a package. A package adds one through an entry point of the group
`rollart_flow.trainers`. Every trainer passes `tests/trainers/conformance.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rollart_flow.registry import Requirement


@dataclass(frozen=True, slots=True)
class TrainerCapabilities:
    """The capabilities of a trainer."""

    many_ranks: bool = False
    """Whether the trainer supports several processes."""
    splits_model: bool = False
    """Whether the ranks can split the model's layers and stages."""
    mixed_precision: bool = False
    """Whether passes can be computed in a dtype other than float32."""
    follows_policy_device: bool = False
    """Whether the trainer uses `policy.device`; otherwise it uses the GPUs that its process sees.
    """
    offloads: bool = False
    """Whether the trainer can free the memory of its device between steps (`Trainer.offload`)."""


@dataclass(frozen=True, slots=True)
class TrainerVariant:
    """A trainer that `train.backend` can name."""

    trainer: str
    """`module:class` of the `Trainer`, imported when it is built, which is called with a
    `ModelConfig`, tensors by Hugging Face name, `Algorithm`, `TrainerSettings` and `Ranks | None`.
    """
    capabilities: TrainerCapabilities = TrainerCapabilities()
    requirements: tuple[Requirement, ...] = ()
    check: Callable[[], None] | None = None
    """Raises MissingExtraError if a package is not installed; None if the trainer needs none."""
