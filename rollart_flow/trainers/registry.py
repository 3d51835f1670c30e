"""Registry of trainers by the name in `train.backend`; a trainer is imported when it is built.

To add a trainer: its module, its `TrainerVariant`, its name below, and an extra in `pyproject.toml`
if it needs a package. A package adds one through an entry point of the group
`rollart_flow.trainers`. Every trainer passes `tests/trainers/conformance.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rollart_flow.registry import Registry, Requirement


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
    any_model: bool = False
    """Whether the trainer trains models of every architecture, through transformers."""
    trains_adapters: bool = False
    """Whether the trainer supports `train.lora_rank`."""
    recomputes_layers: bool = False
    """Whether the trainer supports `train.gradient_checkpointing`."""
    offloads: bool = False
    """Whether the trainer can free the memory of its device between steps (`Trainer.offload`)."""


@dataclass(frozen=True, slots=True)
class TrainerVariant:
    """A trainer that `train.backend` can name."""

    trainer: str
    """`module:class` of the `Trainer`, imported when it is built, which is called with a
    `ModelShape`, tensors by Hugging Face name, `Algorithm`, `RankSettings` and `Ranks | None`.
    """
    capabilities: TrainerCapabilities = TrainerCapabilities()
    requirements: tuple[Requirement, ...] = ()
    check: Callable[[], None] | None = None
    """Raises MissingExtraError if a package is not installed; None if the trainer needs none."""


TRAINERS: Registry[TrainerVariant] = Registry(
    "trainers",
    {
        "embedded": "rollart_flow.trainers.backends.variants:EMBEDDED",
        "fsdp2": "rollart_flow.trainers.backends.variants:FSDP2",
        "megatron": "rollart_flow.trainers.backends.megatron.capabilities:VARIANT",
    },
    setting="train.backend",
    kind=TrainerVariant,
)


def trainer_capabilities(backend: str) -> TrainerCapabilities:
    """Return the capabilities of a trainer without loading it.

    Raises:
        SettingsError: no trainer has that name.
    """
    return TRAINERS.load(backend).capabilities


def many_ranks_trainer() -> str:
    """Return the name of a trainer that supports several ranks and needs no further package."""
    return next(
        name
        for name, variant in TRAINERS.variants()
        if variant.capabilities.many_ranks and variant.check is None
    )


def with_capability(capability: str) -> str:
    """Return the names of the trainers with a capability, for error messages."""
    return " or ".join(
        name for name, variant in TRAINERS.variants() if getattr(variant.capabilities, capability)
    )
