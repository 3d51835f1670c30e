"""Training state that is split over ranks as Megatron-core splits a model.

Tensor-parallel ranks have parts of every matrix, pipeline stages have some of the layers, and
data-parallel ranks have copies, whose gradients are summed before each update. The invariants:
copies stay equal to the last bit; exported tensors have Hugging Face names, and describe which part
of which tensor they are.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from rollart_flow.models.language_model import ModelShape
from rollart_flow.models.qwen3 import own_shape
from rollart_flow.trainers.backends.megatron.capabilities import Capabilities
from rollart_flow.trainers.backends.megatron.groups import Groups
from rollart_flow.trainers.backends.megatron.mapping import Entry, entries, local_rows
from rollart_flow.trainers.backends.megatron.model import INSIDE, LayerChunk, MegatronModel
from rollart_flow.trainers.backends.megatron.pipeline import Scheduled, of_all_stages
from rollart_flow.trainers.backends.sharded_checkpoint import ShardedState
from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.step.critic import ValueHead
from rollart_flow.trainers.step.running import PolicyModel, Runner
from rollart_flow.trainers.step.train_state import InitialState

_OF_HEADS = ("q_layernorm.weight", "k_layernorm.weight")
"""Weights that every rank has whole, but applies to its own heads only."""
_EMBEDDING = f"{INSIDE}embedding.word_embeddings.weight"
_PROJECTION = f"{INSIDE}output_layer.weight"


class MegatronState(ShardedState):
    """Model, head and optimizer of all ranks, of which this process holds a part."""

    def __init__(
        self, initial: InitialState, ranks: Ranks, groups: Groups, machine: Capabilities
    ) -> None:
        """Args: see `ShardedState`; `machine` are the capabilities of the rank.

        Raises WeightsError if the tensors do not fit the shape.
        """
        self._groups = groups
        self._machine = machine
        self._entries: dict[str, Entry] = {}
        super().__init__(initial, ranks)

    def clip(self) -> float:
        """Sum the gradient over ranks and clip it."""
        self._sum_gradients()
        split: list[torch.nn.Parameter] = []
        whole = list(self._head.values()) if self._groups.last else []
        for own, parameter in self._trained.items():
            if own != self._copied:
                (whole if self._entries[own].dim is None else split).append(parameter)
        layout, groups = self._groups.layout, self._groups
        squares = self._summed(_squares(split), layout.tensor, groups.tensor) + _squares(whole)
        norm = math.sqrt(self._summed(squares, layout.pipeline, groups.pipeline))
        largest = self._settings.clip_norm or math.inf
        torch.nn.utils.clip_grads_with_norm_(
            self.parameters, largest, torch.tensor(norm), foreach=False
        )
        return norm

    def _sum_gradients(self) -> None:
        layout = self._groups.layout
        if layout.tensor > 1:
            partial = [
                p
                for own, p in self._trained.items()
                if own.endswith(_OF_HEADS) or getattr(p, "sequence_parallel", False)
            ]
            _sum_in_place(partial, self._groups.tensor)
        if layout.pipeline > 1:
            _sum_in_place(self._tied(), self._groups.embedding)
            for parameter in self._head.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            _sum_in_place([*self._head.values()], self._groups.pipeline)
        if layout.data > 1:
            _sum_in_place(self.parameters, self._groups.data)

    @property
    def _copied(self) -> str | None:
        """Name of the copy of the embedding if this is the last stage of several, else None."""
        tied = self._config.tie_word_embeddings
        return _PROJECTION if tied and self._groups.last and not self._groups.first else None

    def _tied(self) -> list[torch.nn.Parameter]:
        if not self._config.tie_word_embeddings:
            return []
        return [p for own, p in self._trained.items() if own == self._copied or own == _EMBEDDING]

    def _summed(self, value: float, ranks: int, group: dist.ProcessGroup) -> float:
        if ranks == 1:
            return value
        found = torch.tensor(value, dtype=torch.float64, device=self._ranks.device)
        dist.all_reduce(found, group=group)
        return float(found)

    def whole(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gather tensors from all ranks and stages."""
        here = super().whole(tensors)
        one = self._groups.layout.pipeline == 1
        return here if one else of_all_stages(here, self._groups, self._ranks)

    def _runner(self) -> Runner | None:
        if self._groups.layout.pipeline == 1:
            return None
        chunk = LayerChunk(self._mcore)
        return Scheduled(chunk, self._groups, self._ranks.device)

    def _policy(self, shape: ModelShape, whole: Mapping[str, torch.Tensor]) -> PolicyModel:
        config = own_shape(shape, "megatron trainer")
        model = MegatronModel(config, self._groups, self._machine).to(self._ranks.device)
        rank, ranks = self._groups.tensor_rank, self._groups.layout.tensor
        names = {name: name.removeprefix(INSIDE) for name, _ in model.named_parameters()}
        first = self._groups.stage * (config.num_hidden_layers // self._groups.layout.pipeline)
        by_name = entries(config, names.values(), rank, ranks, first)
        self._entries = {own: by_name[name] for own, name in names.items()}
        with torch.no_grad():
            for own, parameter in model.named_parameters():
                parts = [whole[name] for name in self._entries[own].names]
                parameter.copy_(self._joined(own, parts))
        self._config, self._mcore = config, model
        return model

    def _placed(self, head: ValueHead) -> ValueHead:
        return head.to(self._ranks.device)

    def _names(self, parameter: str) -> tuple[str, ...]:
        entry = self._entries.get(parameter)
        return (parameter,) if entry is None else entry.names

    def _parts(self, parameter: str, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        entry = self._entries.get(parameter)
        if entry is None:
            return (tensor,)
        return [
            self._part_of(name, part, entry.dim)
            for name, part in zip(entry.names, entry.parts(tensor), strict=True)
        ]

    def _joined(self, parameter: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        entry = self._entries.get(parameter)
        if entry is None:
            return parts[0]
        return entry.joined([self._local(part, entry.dim) for part in parts])

    def _part_of(self, name: str, part: torch.Tensor, dim: int | None) -> DTensor:
        """Return a part as a DTensor, which describes its place in the whole tensor."""
        shape = self.shapes[name]
        # torch cannot copy a DTensor with an offset in its storage
        own = part.clone() if part.storage_offset() else part.contiguous()
        return DTensor.from_local(
            own,
            self._groups.mesh,
            [Replicate(), Replicate() if dim is None else Shard(dim)],
            shape=shape,
            stride=torch.empty(shape, device="meta").stride(),
        )

    def _local(self, tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Return this rank's part of a tensor, which may be whole."""
        if isinstance(tensor, DTensor):
            return tensor.to_local()
        if dim is None:
            return tensor
        mine = local_rows(tensor.shape[dim], self._groups.tensor_rank, self._groups.layout.tensor)
        return tensor.narrow(dim, mine.start, len(mine))


def _squares(parameters: Iterable[torch.nn.Parameter]) -> float:
    norms = [float(torch.linalg.vector_norm(p.grad)) for p in parameters if p.grad is not None]
    return math.fsum(norm**2 for norm in norms)


def _sum_in_place(parameters: Sequence[torch.nn.Parameter], group: dist.ProcessGroup) -> None:
    """Sum gradients over a group, all of them in one exchange."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=group)
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, summed in zip(gradients, torch.split(flat, sizes), strict=True):
        gradient.copy_(summed.view_as(gradient))
