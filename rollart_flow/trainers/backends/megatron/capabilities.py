"""The description of the Megatron-core trainer, and its capabilities on this machine.

Dense models and mixtures of experts train with tensor, pipeline and data parallel ranks on every
machine: with Megatron's layers and schedules, over gloo on CPUs. On GPUs, Megatron's own data
parallelism and distributed optimizer train too. Sequence parallel needs CUDA and Transformer
Engine. The invariant: a layout that does not work is refused before a model is built, with
one line.

Source: Megatron-core 0.16.1, tried on a machine without a GPU.
"""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.registry import Requirement
from rollart_flow.trainers.layout import Layout
from rollart_flow.trainers.registry import TrainerCapabilities, TrainerVariant

_PACKAGE = "megatron-core"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of this machine for training with Megatron-core."""

    cuda: bool
    """Whether the rank trains on a GPU."""
    transformer_engine: bool
    """Whether NVIDIA's Transformer Engine is installed, whose layers are used on a GPU."""
    stack: bool
    """Whether Megatron's own data parallelism and distributed optimizer train (`distributed`),
    which compute on GPUs only; otherwise gradients are summed in plain exchanges (`split`)."""

    def check(self, layout: Layout) -> None:
        """Raise SettingsError for a layout that does not work here."""
        if layout.sequence and not (self.cuda and self.transformer_engine):
            raise SettingsError(
                "train.sequence_parallel=True: it needs GPUs and the package transformer-engine; "
                "set it to False here"
            )

    @property
    def summary(self) -> str:
        both = "dense models and mixtures of experts, tensor, pipeline and data parallel"
        if not self.stack:
            return f"here on CPUs: {both}"
        sequence = "has" if self.transformer_engine else "needs"
        return (
            f"here on GPUs (untried): {both}, distributed optimizer; "
            f"sequence parallel {sequence} transformer-engine"
        )


def capabilities(*, cuda: bool) -> Capabilities:
    """Return the capabilities of a rank on a GPU or on a CPU, without heavy imports."""
    return Capabilities(cuda, find_spec("transformer_engine") is not None, stack=cuda)


def check_installed() -> None:
    """Raise MissingExtraError if Megatron-core is missing; it is not imported."""
    try:
        version(_PACKAGE)
    except PackageNotFoundError:
        raise MissingExtraError(
            "train.backend 'megatron' needs an extra: pip install 'rollart-flow[megatron]'"
        ) from None


VARIANT = TrainerVariant(
    "rollart_flow.trainers.backends.megatron.trainer:MegatronTrainer",
    TrainerCapabilities(many_ranks=True, splits_model=True),
    (
        Requirement(
            "megatron",
            (_PACKAGE,),
            "megatron",
            summary=lambda cuda: capabilities(cuda=cuda).summary,
        ),
    ),
    check_installed,
)
