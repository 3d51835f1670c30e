"""A script without this library: transformers' model, and a plain training loop."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rollart_flow.models.device import CPU
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.batch.passes import buckets
from rollart_flow.trainers.batch.ragged import Array
from rollart_flow.trainers.batch.training_batch import TrainingBatch
from rollart_flow.trainers.settings import RankSettings
from tests.models.reference import reference_qwen3


def plain_tokens(model: Any, prompts: Sequence[Sequence[int]], new: int) -> None:
    """Let transformers sample `new` tokens for each prompt in one batch; all are as long."""
    batch = torch.tensor(prompts, device=model.device)
    answers = model.generate(
        batch,
        attention_mask=torch.ones_like(batch),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=new,
    )
    assert answers.shape == (len(prompts), len(prompts[0]) + new)


class PlainLoop:
    """The training step of a script: rows in stored order, as many as fit padded."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: dict[str, torch.Tensor],
        settings: RankSettings,
        device: torch.device = CPU,
    ) -> None:
        """Args: learning rate, clipping, dtype and size of a pass are those of `settings`."""
        self._settings, self._device = settings, device
        self._model = reference_qwen3(config, tensors).to(device)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=self._settings.optimizer.lr
        )

    def step(self, batch: TrainingBatch, *, by_length: bool = False) -> float:
        """One update; its loss. With `by_length`, rows of similar lengths are padded together."""
        self._optimizer.zero_grad()
        actions, total = int(batch.actions.starts[-1]), 0.0
        most = self._settings.micro_batch_tokens
        for rows in buckets(batch.tokens.lengths, most) if by_length else _in_order(batch, most):
            mixed = self._settings.dtype == "bfloat16"
            with torch.autocast(self._device.type, torch.bfloat16, enabled=mixed):
                loss = self._loss(batch, rows) / actions
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.optimizer.clip_norm)
        self._optimizer.step()
        return total

    def _loss(self, batch: TrainingBatch, rows: Array) -> torch.Tensor:
        """Clipped, summed over action tokens."""
        chains = [batch.tokens.values[slice(*batch.tokens.starts[row : row + 2])] for row in rows]
        tokens = torch.nn.utils.rnn.pad_sequence(
            [torch.from_numpy(chain) for chain in chains], batch_first=True
        ).to(self._device)
        logits = self._model(tokens).logits[:, :-1].float()
        every = torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
        at, owners = batch.actions.positions(rows)
        logprobs = every[self._there(owners), self._there(batch.actions.values[at] - 1)]
        ratio = (logprobs - self._there(batch.behavior_logprobs[at])).exp()
        advantages = self._there(batch.advantages[at])
        clipped = ratio.clamp(0.8, 1.28) * advantages
        return -torch.minimum(ratio * advantages, clipped).sum()

    def _there(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def _in_order(batch: TrainingBatch, most: int) -> list[Array]:
    """Rows of each pass: as many as fit."""
    lengths, cuts, longest = batch.tokens.lengths, [0], 0
    for row, length in enumerate(lengths):
        longest = max(longest, int(length))
        if (row + 1 - cuts[-1]) * longest > most:
            cuts.append(row)
            longest = int(length)
    return [np.arange(*pair) for pair in zip(cuts, [*cuts[1:], batch.rows], strict=True)]
