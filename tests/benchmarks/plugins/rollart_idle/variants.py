"""The description of the trainer, which does not load it."""

from rollart_flow.trainers.registry import TrainerCapabilities, TrainerVariant

TRAINER = TrainerVariant(
    "rollart_idle.trainer:IdleTrainer", TrainerCapabilities(follows_policy_device=True)
)
