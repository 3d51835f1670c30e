"""Conversion between the Megatron tensors of one tensor-parallel rank and Hugging Face tensors.

Megatron has queries, keys and values of a group of heads side by side in one matrix, gate and up
projection in another, and splits both by rows. Every Hugging Face tensor is therefore split along
one dimension too, in equal parts by rank. The invariant: a conversion forth and back gives the same
bits; rows that pad the vocabulary are never exported.

The layers of both specs of Megatron are supported: those of its own modules, and those of
Transformer Engine, whose norms are parts of the matrices that follow them.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from rollart_flow.errors import WeightsError
from rollart_flow.models.qwen3 import ModelConfig


@dataclass(frozen=True, slots=True)
class Entry:
    """A Megatron tensor that is one Hugging Face tensor, split or replicated over ranks."""

    names: tuple[str, ...]
    """Hugging Face tensors that it corresponds to."""
    dim: int | None
    """Dimension along which they are split over tensor-parallel ranks; None if they are
    replicated.
    """

    def parts(self, local: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return this rank's parts of the Hugging Face tensors."""
        return (local,)

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return this rank's Megatron tensor."""
        return parts[0]


@dataclass(frozen=True, slots=True)
class Padded(Entry):
    """Embedding or output projection: every rank has `rows`, the last ones fewer tokens."""

    rows: int
    tokens: int
    """Number of tokens of this rank."""

    def parts(self, local: torch.Tensor) -> Sequence[torch.Tensor]:
        return (local[: self.tokens],)

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        (part,) = parts
        return torch.cat([part, part.new_zeros(self.rows - len(part), part.shape[1])])


@dataclass(frozen=True, slots=True)
class Grouped(Entry):
    """Queries, keys and values, side by side for each group of query heads."""

    groups: int
    """Number of groups of this rank."""
    head_dim: int

    def parts(self, local: torch.Tensor) -> Sequence[torch.Tensor]:
        grouped = local.view(self.groups, -1, self.head_dim, local.shape[1])
        return [
            grouped[:, which].flatten(0, -2)
            for which in (slice(-2), slice(-2, -1), slice(-1, None))
        ]

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        width = parts[0].shape[1]
        grouped = [part.view(self.groups, -1, width) for part in parts]
        return torch.cat(grouped, 1).view(-1, width)


@dataclass(frozen=True, slots=True)
class Stacked(Entry):
    """Gate and up projection, this rank's rows of one below those of the other."""

    def parts(self, local: torch.Tensor) -> Sequence[torch.Tensor]:
        return local.chunk(2)

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(parts))


_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_NORMS = {
    "input_layernorm.weight": "input_layernorm",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm",
    "pre_mlp_layernorm.weight": "post_attention_layernorm",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm",
    "self_attention.q_layernorm.weight": "self_attn.q_norm",
    "self_attention.k_layernorm.weight": "self_attn.k_norm",
}
_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)")


def local_rows(rows: int, rank: int, ranks: int) -> range:
    """Return the rows of a rank: equal parts, the last ones shorter, as DTensor splits them."""
    each = -(-rows // ranks)
    return range(rows)[rank * each : (rank + 1) * each]


def entries(
    config: ModelConfig, names: Iterable[str], rank: int, ranks: int, first_layer: int = 0
) -> dict[str, Entry]:
    """Return the Hugging Face tensors that each Megatron parameter corresponds to, of either spec.

    Args:
        rank: rank among the `ranks` that split the layers.
        first_layer: index in the model of Megatron's layer 0 here.

    Raises WeightsError if a name corresponds to no tensor of the model.
    """
    tokens = len(local_rows(config.vocab_size, rank, ranks))
    rows = -(-config.vocab_size // ranks)
    embedding = "model.embed_tokens.weight"
    # the last of several stages has a copy of the embedding if that is the projection too
    output = embedding if config.tie_word_embeddings else "lm_head.weight"
    outside: dict[str, Entry] = {
        "embedding.word_embeddings.weight": Padded((embedding,), 0, rows, tokens),
        "output_layer.weight": Padded((output,), 0, rows, tokens),
        "decoder.final_layernorm.weight": Entry(("model.norm.weight",), None),
    }
    found = {}
    for name in names:
        layer = _LAYER.fullmatch(name)
        if layer is None:
            entry = outside.get(name)
        else:
            prefix = f"model.layers.{first_layer + int(layer[1])}"
            entry = _of_layer(config, prefix, layer[2], ranks)
        if entry is None:
            raise WeightsError(f"Megatron's parameter {name!r} stands for no tensor of a Qwen3")
        found[name] = entry
    return found


def _of_layer(config: ModelConfig, prefix: str, name: str, ranks: int) -> Entry | None:
    if name in _NORMS:
        return Entry((f"{prefix}.{_NORMS[name]}.weight",), None)
    if name == "self_attention.linear_proj.weight":
        return Entry((f"{prefix}.self_attn.o_proj.weight",), 1)
    if name == "self_attention.linear_qkv.weight":
        three = tuple(f"{prefix}.self_attn.{which}_proj.weight" for which in "qkv")
        groups = config.num_key_value_heads // ranks
        return Grouped(three, 0, groups, config.head_dim)
    if name == "mlp.router.weight" and config.experts is not None:
        return Entry((f"{prefix}.mlp.gate.weight",), None)
    block, _, matrix = name.rpartition(".linear_")
    expert = _EXPERT.fullmatch(block)
    own = f"{prefix}.mlp" if expert is None else f"{prefix}.mlp.experts.{expert[1]}"
    if block != "mlp" and expert is None:
        return None
    if matrix == "fc1.weight":
        return Stacked((f"{own}.gate_proj.weight", f"{own}.up_proj.weight"), 0)
    return Entry((f"{own}.down_proj.weight",), 1) if matrix == "fc2.weight" else None
