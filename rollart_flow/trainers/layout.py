"""The split of one model over the ranks of a trainer, as frozen settings, which load no torch.

The invariant: ranks = tensor x pipeline x data, so that every rank has one place.

Source: Megatron-core, `parallel_state.initialize_model_parallel`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollart_flow.errors import SettingsError
from rollart_flow.trainers.registry import trainer_capabilities, with_capability

COLLECTIVE_TIMEOUT_S = 300.0
"""Longest wait for the others in one exchange [s], unless `train.collective_timeout_s` says
otherwise. A rank that dies closes its connections and is noticed at once; this is for one that
hangs. Writing a checkpoint is the longest thing that ranks wait for."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Split of the model and of a batch over the ranks."""

    tensor: int = 1
    """Ranks that split the matrices of each layer."""
    pipeline: int = 1
    """Stages that the layers are cut into, which pass a micro-batch on to each other."""
    data: int = 1
    """Copies of the model, each of which computes rows of its own."""
    sequence: bool = False
    """Whether tensor ranks also split what lies between the matrices, by position."""

    @property
    def ranks(self) -> int:
        """Total number of processes."""
        return self.tensor * self.pipeline * self.data

    def check_shape(
        self, *, key_value_heads: int, intermediate: int, layers: int, expert: int | None = None
    ) -> None:
        """Refuse a model that does not divide over the ranks.

        Args:
            key_value_heads: of each layer.
            intermediate: width between the matrices of a feed-forward block.
            layers: of the model.
            expert: width between the matrices of an expert; None where there are none.

        Raises:
            SettingsError: says which number of the model, and which setting.
        """
        numbers = [
            ("key and value heads", key_value_heads, "tensor_parallel", self.tensor),
            ("intermediate size", intermediate, "tensor_parallel", self.tensor),
            ("layers", layers, "pipeline_parallel", self.pipeline),
        ]
        if expert is not None:
            numbers.append(("expert's intermediate size", expert, "tensor_parallel", self.tensor))
        for name, value, setting, parts in numbers:
            if value % parts:
                raise SettingsError(
                    f"train.{setting}={parts}: does not divide the model's {name} ({value})"
                )


def layout_of(
    backend: str,
    ranks: int,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    *,
    sequence_parallel: bool = False,
) -> Layout:
    """Return the layout for settings of `train`; data parallelism uses the remaining ranks.

    Raises:
        SettingsError: the trainer is unknown or lacks a capability, or the numbers do not divide.
    """
    can = trainer_capabilities(backend)
    if ranks > 1 and not can.many_ranks:
        raise SettingsError(
            f"train.ranks={ranks}: the {backend} trainer is one process; "
            f"set backend to {with_capability('many_ranks')}, or ranks to 1"
        )
    split = tensor_parallel * pipeline_parallel
    if not can.splits_model and (split > 1 or sequence_parallel):
        raise SettingsError(
            f"train: the {backend} trainer has no tensor, pipeline or sequence parallel; "
            f"set backend to {with_capability('splits_model')}"
        )
    if ranks % split:
        raise SettingsError(
            f"train.ranks={ranks}: must be a multiple of tensor_parallel x pipeline_parallel = "
            f"{split}"
        )
    if sequence_parallel and tensor_parallel == 1:
        raise SettingsError("train.sequence_parallel needs tensor_parallel of 2 or more")
    return Layout(tensor_parallel, pipeline_parallel, ranks // split, sequence_parallel)
