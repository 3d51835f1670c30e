"""Settings of trainers of every backend; loads no torch."""

from dataclasses import dataclass, field
from typing import Annotated

from rollart_flow.errors import SettingsError
from rollart_flow.fields import Count, NotNegative, Within, check_fields
from rollart_flow.models.architectures import AUTO
from rollart_flow.models.policy import DEVICES, DTYPES
from rollart_flow.trainers.layout import COLLECTIVE_TIMEOUT_S, Layout, layout_of
from rollart_flow.trainers.optimizer import AdamW
from rollart_flow.trainers.registry import trainer_capabilities, with_capability
from rollart_flow.validation import check_choice


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """A LoRA adapter to train."""

    rank: int
    alpha: int
    """Factor of the adapter, times the rank."""
    targets: tuple[str, ...]
    """Last names of the linear layers with an adapter; empty stands for those of all layers."""

    @staticmethod
    def of(rank: int, alpha: int, targets: tuple[str, ...] = ()) -> "LoraSettings":
        """Return the adapter of these settings of `train`, where an alpha of 0 stands for the
        default."""
        return LoraSettings(rank, alpha or 2 * rank, targets)

    @property
    def scale(self) -> float:
        """Factor of the product of the adapter's matrices."""
        return self.alpha / self.rank


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Settings of `train` that turn a batch into a new version, independent of the algorithm.

    Raises:
        SettingsError: a setting is out of range, or they contradict one another.
    """

    backend: str = "embedded"
    """embedded: one process on a CPU; fsdp2, megatron: `ranks` processes that share the policy."""
    ranks: Count = 1
    """Processes that train together, placed as one gang."""
    tensor_parallel: Count = 1
    """Ranks that each layer is split over (megatron); data parallelism uses the rest of `ranks`."""
    pipeline_parallel: Count = 1
    """Stages of equally many layers, which pass micro-batches to each other (megatron)."""
    sequence_parallel: bool = False
    """Split activations between matrices by position too (megatron on GPUs, untried)."""
    collective_timeout_s: Annotated[float, Within(1)] = COLLECTIVE_TIMEOUT_S
    """Longest wait of a rank for the others in one exchange [s]. A rank that dies closes its
    connections and is noticed at once; one that hangs longer is abandoned, and the run continues
    from the newest checkpoint. Must be at least the time to write a checkpoint."""
    optimizer: AdamW = field(default_factory=AdamW)
    """The optimizer and its learning rate, as `adamw(...)`."""
    minibatches: Count = 1
    """Optimizer steps that one batch is cut into; still one training step, one version."""
    epochs: Count = 1
    """Number of passes over a batch."""
    micro_batch_tokens: Count = 16384
    """Most tokens of one forward and backward pass; sets memory, not results."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer for the backward pass, which computes the layer again:
    less memory for about a third more computation, and the same results (embedded, fsdp2)."""
    lora_rank: NotNegative = 0
    """Rank of a LoRA adapter, which alone is trained and published (embedded, fsdp2); 0 trains all
    weights."""
    lora_alpha: NotNegative = 0
    """Factor of the adapter times its rank; 0 stands for twice the rank."""
    lora_targets: tuple[str, ...] = ()
    """Linear layers with an adapter, such as q_proj, v_proj; empty takes those of all layers."""
    threads: Count = 1
    """Intra-op threads, pinned and recorded, so that replay gives the same bits."""
    mismatch: bool = False
    """Recompute logprobs before a step of several minibatches, for the mismatch columns of `steps`;
    a step of a single minibatch has these columns anyway."""
    keep_logprobs: bool = False
    """Keep the logprob of each action token under the weights that its step starts from, in a file
    for each step beside the tables: 4 bytes a token, and the forward pass of `mismatch`."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.layout  # noqa: B018  refuses what does not divide
        if self.lora_rank and not trainer_capabilities(self.backend).trains_adapters:
            raise SettingsError(
                f"train.lora_rank: the {self.backend} trainer trains no adapter; set backend to "
                f"{with_capability('trains_adapters')}"
            )
        if self.gradient_checkpointing and not trainer_capabilities(self.backend).recomputes_layers:
            raise SettingsError(
                f"train.gradient_checkpointing: the {self.backend} trainer has none; set backend "
                f"to {with_capability('recomputes_layers')}"
            )

    @property
    def lora(self) -> LoraSettings | None:
        """The adapter to train; None if all weights are trained."""
        if not self.lora_rank:
            return None
        return LoraSettings.of(self.lora_rank, self.lora_alpha, self.lora_targets)

    @property
    def layout(self) -> Layout:
        """The way in which the ranks divide the model.

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


@dataclass(frozen=True, kw_only=True)
class RankSettings(TrainerSettings):
    """Settings of one rank: those of `train`, and those that follow from policy and pipeline."""

    device: str = "cpu"
    """Device of the embedded trainer; other trainers use the GPUs that they see."""
    dtype: str = "float32"
    """Dtype of passes; weights, gradients and the optimizer are float32."""
    seed: NotNegative = 0
    """Seed of the order in which a batch is cut into minibatches."""
    implementation: str = AUTO
    """Model code, as in `Policy.implementation`."""
    adapter_base: int | None = 0
    """Version of the initial weights, which published adapters name as their base; None publishes
    whole weights with the adapter merged, as runs of earlier versions recorded them."""
    packed: bool = True
    """Whether the trajectories of a pass lie in one row, instead of padded to the longest of them;
    only steps that were recorded with padded rows are recomputed with them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("train: device", self.device, DEVICES)
        check_choice("train: dtype", self.dtype, DTYPES)
        if self.dtype != "float32" and not trainer_capabilities(self.backend).mixed_precision:
            raise SettingsError(
                f"train: the {self.backend} trainer computes in float32; set dtype to it"
            )
