"""Trainers by the name that a pipeline uses; loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.policy import Policy
from rollart_flow.trainers.backends.megatron.capabilities import check_installed
from rollart_flow.trainers.settings import TrainerSettings

if TYPE_CHECKING:
    from rollart_flow.trainers.base import Trainer
    from rollart_flow.trainers.ranks import Ranks


def check_trainer(policy: Policy, settings: TrainerSettings) -> None:
    """Refuse, before a run starts, a trainer that cannot train the policy; loads no trainer.

    A policy that is pretrained is looked at when the trainer starts.

    Raises:
        SettingsError: the policy does not divide over the ranks.
        MissingExtraError: the trainer's packages are not installed.
    """
    if settings.backend == "megatron":
        check_installed()
    if policy.path is None:
        settings.layout.check_shape(
            key_value_heads=policy.key_value_heads,
            intermediate=policy.intermediate,
            layers=policy.layers,
        )


def build_trainer(
    settings: TrainerSettings, algorithm: Algorithm, folder: str, ranks: Ranks | None = None
) -> Trainer:
    """The trainer that `settings.backend` names, at version 0 with the weights in `folder`.

    Args:
        settings: of the trainer.
        algorithm: the loss.
        folder: a Hugging Face folder, read by every rank.
        ranks: whom this process has joined; by default it trains by itself, whatever the number of
            ranks in the settings.

    Raises:
        SettingsError: there is no model, or one that the trainer cannot train, or no GPU for it.
        WeightsError: the weights are damaged, or are not those of the config.
        MissingExtraError: the trainer's packages are not installed.
    """
    from rollart_flow.models.folder import load_folder

    config, tensors = load_folder(folder)
    if settings.backend == "fsdp2":
        from rollart_flow.trainers.backends.fsdp2 import Fsdp2Trainer

        return Fsdp2Trainer(config, tensors, algorithm, settings, ranks)
    if settings.backend == "megatron":
        from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

        return MegatronTrainer(config, tensors, algorithm, settings, ranks)
    from rollart_flow.trainers.backends.embedded import EmbeddedTrainer

    return EmbeddedTrainer(config, tensors, algorithm, settings)
