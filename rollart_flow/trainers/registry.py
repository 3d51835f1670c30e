"""Registry of trainers by the name in `train.backend`; a trainer is imported when it is built."""

from rollart_flow.registry import Registry
from rollart_flow.trainers.variant import TrainerCapabilities, TrainerVariant

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


def with_capability(capability: str) -> str:
    """Return the names of the trainers with a capability, for error messages."""
    return " or ".join(
        name for name, variant in TRAINERS.variants() if getattr(variant.capabilities, capability)
    )
