"""The descriptions of the trainers that need no further package."""

from rollart_flow.trainers.registry import TrainerCapabilities, TrainerVariant

EMBEDDED = TrainerVariant(
    "rollart_flow.trainers.backends.embedded:EmbeddedTrainer",
    TrainerCapabilities(
        mixed_precision=True,
        follows_policy_device=True,
        any_model=True,
        recomputes_layers=True,
        trains_adapters=True,
        offloads=True,
    ),
)
"""The policy in one process."""
FSDP2 = TrainerVariant(
    "rollart_flow.trainers.backends.fsdp2:Fsdp2Trainer",
    TrainerCapabilities(
        many_ranks=True,
        mixed_precision=True,
        any_model=True,
        recomputes_layers=True,
        trains_adapters=True,
        offloads=True,
    ),
)
"""The policy, sharded by torch."""
