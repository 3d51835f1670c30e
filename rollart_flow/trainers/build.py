"""Checks and builds the trainer that `train.backend` names; loads no torch before it builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.parts.branches import BranchWeight
from rollart_flow.errors import SettingsError
from rollart_flow.models.architectures import TRANSFORMERS
from rollart_flow.models.policy import Policy
from rollart_flow.registry import load_attribute
from rollart_flow.trainers.registry import TRAINERS, with_capability
from rollart_flow.trainers.settings import RankSettings, TrainerSettings

if TYPE_CHECKING:
    from rollart_flow.trainers.base import Trainer
    from rollart_flow.trainers.ranks import Ranks


def check_trainer(policy: Policy, settings: TrainerSettings) -> None:
    """Refuse, before a run starts, a trainer that cannot train the policy; loads no trainer.

    A pretrained policy is checked when the trainer starts.

    Raises:
        SettingsError: the policy does not divide over the ranks, or the trainer does not train its
            architecture.
        MissingExtraError: the trainer's packages are not installed.
    """
    check = TRAINERS.load(settings.backend).check
    if check is not None:
        check()
    generic = policy.implementation == TRANSFORMERS or policy.foreign is not None
    if generic and not TRAINERS.load(settings.backend).capabilities.any_model:
        raise SettingsError(
            f"train: the {settings.backend} trainer trains Qwen3 alone; set backend to "
            f"{with_capability('any_model')}"
        )
    if policy.path is None:
        settings.layout.check_shape(
            key_value_heads=policy.key_value_heads,
            intermediate=policy.intermediate,
            layers=policy.layers,
        )


def check_updates(
    algorithm: Algorithm, settings: TrainerSettings, branch_weight: BranchWeight
) -> None:
    """Refuse settings with which a loss that is linear around a step's first weights is another.

    Raises:
        SettingsError: a step is several updates, or rows of an episode do not share its weight.
    """
    if not algorithm.advantage.single_update:
        return
    if settings.minibatches * settings.epochs > 1:
        raise SettingsError(
            f"{algorithm.name} takes one update a step, from the slope of its loss at the weights "
            "that the step starts from; set minibatches and epochs to 1, and take smaller batches"
        )
    if branch_weight != "split":
        raise SettingsError(f"{algorithm.name} weighs whole episodes; set branch_weight to split")


def build_trainer(
    settings: RankSettings, algorithm: Algorithm, folder: str, ranks: Ranks | None = None
) -> Trainer:
    """Build the trainer that `settings.backend` names, at version 0 with the weights in `folder`.

    Args:
        settings: settings of the trainer.
        algorithm: the loss.
        folder: a Hugging Face folder, read by every rank.
        ranks: the ranks that this process has joined; by default it trains by itself, whatever the
            number of ranks in the settings.

    Raises:
        SettingsError: there is no model, or one that the trainer cannot train, or no GPU for it.
        WeightsError: the weights are damaged, or are not those of the config.
        MissingExtraError: the trainer's packages are not installed.
    """
    from rollart_flow.models.folder import load_folder

    variant = TRAINERS.load(settings.backend)
    make: Callable[..., Trainer] = load_attribute(variant.trainer)
    joined = (ranks,) if variant.capabilities.many_ranks else ()
    return make(*load_folder(folder, settings.implementation), algorithm, settings, *joined)
