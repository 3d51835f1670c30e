"""Models and batches for the tests of trainers, and a reference that shares no code with them.

The reference goes through a batch row by row without padding, with transformers' Qwen3.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import torch

from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.types import Sampling
from tests.builders import batch_table
from tests.models.reference import reference_qwen3

VOCABULARY = 31
CONFIG = ModelConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=256,
    initializer_range=0.2,
)


def initial_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights of version 0, large enough that logits differ."""
    model = Qwen3(CONFIG)
    model.initialize(seed)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def model_of(weights: dict[str, torch.Tensor]) -> Qwen3:
    """The model with these weights."""
    model = Qwen3(CONFIG)
    model.load_state_dict(weights)
    return model


@dataclass(frozen=True)
class Row:
    """One trajectory, as plain values."""

    token_ids: list[int]
    action_mask: list[bool]
    logprobs: list[float]
    sampling: Sampling = field(default_factory=Sampling)
    kept_token_ids: list[list[int]] | None = None
    advantage: list[float] = field(default_factory=lambda: [1.0])
    weight: float = 1.0

    @property
    def actions(self) -> list[int]:
        """Positions of action tokens."""
        return [at for at, acted in enumerate(self.action_mask) if acted]


def make_rows(
    count: int, seed: int, *, longest: int = 40, sampling: Sampling | None = None
) -> list[Row]:
    """Random multi-turn chains of uneven lengths; tokens obey the sampling's allowed and kept ids.

    Behavior logprobs are plausible but not any model's, so that ratios leave the clip on both
    sides; advantages have both signs, some rows one value and some one for each token.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    rows = []
    for index in range(count):
        chosen = sampling or Sampling()
        length = draw(4, longest)
        mask = [False, *(draw(0, 2) == 1 for _ in range(length - 2)), index % 3 == 0]
        mask[draw(1, length - 1)] = True
        actions = sum(mask)
        allowed = list(chosen.allowed_token_ids) or list(range(VOCABULARY))
        tokens = [
            allowed[draw(0, len(allowed))] if acted else draw(0, VOCABULARY) for acted in mask
        ]
        kept = None
        if chosen.truncates:
            kept = [
                sorted({token, *(allowed[draw(0, len(allowed))] for _ in range(3))})
                for token, acted in zip(tokens, mask, strict=True)
                if acted
            ]
        noise = torch.randn(length + actions, generator=generator)
        logprobs = [
            -abs(float(z)) * 2 - 1 if acted else 0.0 for z, acted in zip(noise, mask, strict=False)
        ]
        advantage = noise[length : length + (1 if index % 2 else actions)].tolist()
        rows.append(Row(tokens, mask, logprobs, chosen, kept, advantage, 1.0))
    return rows


def on_policy(rows: Sequence[Row], weights: dict[str, torch.Tensor]) -> list[Row]:
    """The rows with the behavior logprobs that these weights give, by the reference."""
    model = reference_model(weights)
    changed = []
    for row in rows:
        logprobs = [0.0] * len(row.token_ids)
        with torch.no_grad():
            values = reference_logprobs(model, row).tolist()
        for at, value in zip(row.actions, values, strict=True):
            logprobs[at] = value
        changed.append(replace(row, logprobs=logprobs))
    return changed


def table(rows: Sequence[Row]) -> pa.Table:
    """The rows as a trainer gets them."""
    columns: dict[str, list[Any]] = {
        "trajectory_id": [f"t{index}" for index in range(len(rows))],
        "token_ids": [row.token_ids for row in rows],
        "action_mask": [row.action_mask for row in rows],
        "logprobs": [row.logprobs for row in rows],
        "sampling": [asdict(row.sampling) for row in rows],
        "kept_token_ids": [row.kept_token_ids for row in rows],
        "advantage": [row.advantage for row in rows],
        "weight": [row.weight for row in rows],
    }
    return batch_table(columns)


def reference_model(weights: dict[str, torch.Tensor]) -> Any:
    """transformers' own model with these weights, float64."""
    return reference_qwen3(CONFIG, weights).double()


def reference_logprobs(model: Any, row: Row) -> torch.Tensor:
    """Logprob of each action token of one row, float64 [actions], differentiable."""
    return torch.stack([distribution[token] for distribution, token in _reference(model, row)])


def reference_entropy(model: Any, row: Row) -> torch.Tensor:
    """Entropy at each action token of one row, float64 [actions], differentiable."""
    found = []
    for distribution, _ in _reference(model, row):
        possible = distribution[distribution > -torch.inf]
        found.append(-(possible.exp() * possible).sum())
    return torch.stack(found)


def _reference(model: Any, row: Row) -> list[tuple[torch.Tensor, int]]:
    logits = model(torch.tensor([row.token_ids])).logits[0]
    found = []
    for index, at in enumerate(row.actions):
        possible = set(row.sampling.allowed_token_ids or range(VOCABULARY))
        if row.kept_token_ids is not None:
            possible &= set(row.kept_token_ids[index])
        masked = torch.full((VOCABULARY,), -torch.inf, dtype=torch.float64)
        ids = sorted(possible)
        masked[ids] = logits[at - 1][ids] / row.sampling.temperature
        found.append((torch.log_softmax(masked, 0), row.token_ids[at]))
    return found


def completed(rows: Sequence[Row], seed: int = 0, *, trained_version: int = 5) -> pa.Table:
    """The rows with the columns that only some algorithms read: rewards, versions, targets."""
    generator = torch.Generator().manual_seed(seed)
    versions = [
        torch.randint(trained_version - 2, trained_version + 1, (len(row.token_ids),),
                      generator=generator).tolist()
        for row in rows
    ]  # fmt: skip
    targets = [torch.randn(len(row.actions), generator=generator).tolist() for row in rows]
    masked = [
        [version if acted else -1 for version, acted in zip(of, row.action_mask, strict=True)]
        for of, row in zip(versions, rows, strict=True)
    ]
    more = batch_table(
        {
            "reward": [at % 3 - 1.0 for at in range(len(rows))],
            "token_versions": masked,
            "trained_version": [trained_version] * len(rows),
            "targets": targets,
        }
    )
    found = table(rows)
    for name in more.column_names:
        found = found.append_column(more.schema.field(name), more[name])
    return found
