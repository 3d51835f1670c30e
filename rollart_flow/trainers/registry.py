"""Trainers by the name that a pipeline uses, and the settings that they share; loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.checks import check_choice, check_count, check_flag, check_number
from rollart_flow.errors import SettingsError
from rollart_flow.models.policy import DEVICES, DTYPES, Policy
from rollart_flow.trainers.layout import COLLECTIVE_TIMEOUT_S, Layout, layout_of
from rollart_flow.trainers.megatron.capabilities import check_installed
from rollart_flow.trainers.optimizer import AdamW

if TYPE_CHECKING:
    from rollart_flow.trainers.base import Trainer
    from rollart_flow.trainers.ranks import Ranks


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """How a batch becomes a new version, whatever the algorithm."""

    backend: str = "embedded"
    device: str = "cpu"
    """What the embedded trainer computes on; the others take the GPUs that they see."""
    dtype: str = "float32"
    """What passes are computed in; weights, gradients and the optimizer are float32."""
    ranks: int = 1
    """Processes that train together."""
    tensor_parallel: int = 1
    """Ranks that split each layer (megatron)."""
    pipeline_parallel: int = 1
    """Stages of equally many layers, which pass micro-batches on to each other (megatron)."""
    sequence_parallel: bool = False
    """Whether the ranks that split a layer split activations by position too (megatron)."""
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S
    """Longest wait of a rank for the others: after it, one that hangs is given up."""
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
        self.layout  # noqa: B018  refuses what does not divide
        check_choice("train: device", self.device, DEVICES)
        check_choice("train: dtype", self.dtype, DTYPES)
        if self.backend == "megatron" and self.dtype != "float32":
            raise SettingsError("train: the megatron trainer computes in float32; set dtype to it")
        check_number("train.collective_timeout_s", self.collective_timeout_s, low=1)
        check_count("train.minibatches", self.minibatches, low=1)
        check_count("train.epochs", self.epochs, low=1)
        check_count("train.micro_batch_tokens", self.micro_batch_tokens, low=1)
        check_count("train.threads", self.threads, low=1)
        check_count("train.seed", self.seed, low=0)
        check_flag("train.mismatch", self.mismatch)

    @property
    def layout(self) -> Layout:
        """How the ranks share the model.

        Raises:
            SettingsError: see `layout_of`.
        """
        return layout_of(
            self.backend,
            self.ranks,
            self.tensor_parallel,
            self.pipeline_parallel,
            sequence_parallel=self.sequence_parallel,
        )


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
        from rollart_flow.trainers.fsdp2 import Fsdp2Trainer

        return Fsdp2Trainer(config, tensors, algorithm, settings, ranks)
    if settings.backend == "megatron":
        from rollart_flow.trainers.megatron.trainer import MegatronTrainer

        return MegatronTrainer(config, tensors, algorithm, settings, ranks)
    from rollart_flow.trainers.embedded import EmbeddedTrainer

    return EmbeddedTrainer(config, tensors, algorithm, settings)
