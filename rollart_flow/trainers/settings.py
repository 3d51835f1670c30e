"""Settings of trainers of every backend; loads no torch."""

from dataclasses import dataclass, field

from rollart_flow.errors import SettingsError
from rollart_flow.models.policy import DEVICES, DTYPES
from rollart_flow.trainers.layout import COLLECTIVE_TIMEOUT_S, Layout, layout_of
from rollart_flow.trainers.optimizer import AdamW
from rollart_flow.trainers.registry import trainer_capabilities
from rollart_flow.validation import check_choice, check_count, check_flag, check_number


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """Settings that turn a batch into a new version, independent of the algorithm."""

    backend: str = "embedded"
    device: str = "cpu"
    """Device of the embedded trainer; other trainers use the GPUs that they see."""
    dtype: str = "float32"
    """Dtype of passes; weights, gradients and the optimizer are float32."""
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
    """Parts that one batch is cut into, each with one optimizer step."""
    epochs: int = 1
    """Number of passes over a batch."""
    micro_batch_tokens: int = 16384
    """Most tokens, padding included, of one forward and backward pass; sets memory, not results."""
    threads: int = 1
    """Intra-op threads, pinned and recorded."""
    seed: int = 0
    """Seed of the order in which a batch is cut into minibatches."""
    mismatch: bool = False
    """Recompute the logprobs of a batch before the first of several minibatches, so that `steps`
    can say how far the engines are off. With one minibatch they are known anyway."""

    def __post_init__(self) -> None:
        self.layout  # noqa: B018  refuses what does not divide
        check_choice("train: device", self.device, DEVICES)
        check_choice("train: dtype", self.dtype, DTYPES)
        if self.dtype != "float32" and not trainer_capabilities(self.backend).mixed_precision:
            raise SettingsError(
                f"train: the {self.backend} trainer computes in float32; set dtype to it"
            )
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
