"""Trainers by the name that a pipeline uses, and the settings that they share; loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.checks import check_choice, check_count, check_flag
from rollart_flow.errors import SettingsError
from rollart_flow.trainers.optimizer import AdamW

if TYPE_CHECKING:
    from rollart_flow.trainers.base import Trainer

TRAINERS = ("embedded", "fsdp2")
MANY_RANKS = ("fsdp2",)
"""Those that can train in several processes."""


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """How a batch becomes a new version, whatever the algorithm."""

    backend: str = "embedded"
    ranks: int = 1
    """Processes that train together."""
    optimizer: AdamW = field(default_factory=AdamW)
    minibatches: int = 1
    """Optimizer steps that one batch is cut into."""
    epochs: int = 1
    """Times that a batch is gone through."""
    micro_batch_tokens: int = 16384
    """Most tokens, padding included, of one forward and backward pass; sets memory, not results."""
    threads: int = 1
    """Intra-op threads, pinned and recorded."""
    seed: int = 0
    """Of the order in which minibatches are drawn from a batch."""
    mismatch: bool = False
    """Recompute the logprobs of a batch before the first of several minibatches, so that `steps`
    can say how far the engines are off. With one minibatch they are known anyway."""

    def __post_init__(self) -> None:
        check_count("train.ranks", self.ranks, low=1)
        check_backend(self.backend, self.ranks)
        check_count("train.minibatches", self.minibatches, low=1)
        check_count("train.epochs", self.epochs, low=1)
        check_count("train.micro_batch_tokens", self.micro_batch_tokens, low=1)
        check_count("train.threads", self.threads, low=1)
        check_count("train.seed", self.seed, low=0)
        check_flag("train.mismatch", self.mismatch)


def check_backend(backend: str, ranks: int) -> None:
    """Refuse a trainer that there is not, and several ranks of one that is one process.

    Raises:
        SettingsError: says which there are, or which have several.
    """
    check_choice("train.backend", backend, TRAINERS)
    if ranks > 1 and backend not in MANY_RANKS:
        raise SettingsError(
            f"train.ranks={ranks}: the {backend} trainer is one process; "
            f"set backend to {' or '.join(MANY_RANKS)}, or ranks to 1"
        )


def build_trainer(settings: TrainerSettings, algorithm: Algorithm, folder: str) -> Trainer:
    """The trainer that `settings.backend` names, at version 0 with the weights in `folder`.

    One of several ranks trains with those that this process has joined (`ranks.join`).

    Raises:
        SettingsError, WeightsError: the folder holds no model that it can train.
    """
    if settings.backend == "fsdp2":
        from rollart_flow.trainers.fsdp2 import Fsdp2Trainer

        return Fsdp2Trainer.from_folder(folder, algorithm, settings)
    from rollart_flow.trainers.embedded import EmbeddedTrainer

    return EmbeddedTrainer.from_folder(folder, algorithm, settings)
