"""A training step of a Llama by the embedded trainer against a script of transformers and torch.

Both sides compute the same packed rows in turn: 32 trajectories of uneven lengths, of which each
pass holds as many as fit, on one thread. The script gives transformers the positions, from which it
makes the mask of the chains, as a trainer without an attention of its own does.
"""

from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rollart_flow.algorithms import grpo
from rollart_flow.models.hf.config import TransformersConfig
from rollart_flow.models.hf.model import TransformersModel
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.batch.passes import packs
from rollart_flow.trainers.batch.ragged import Array
from rollart_flow.trainers.batch.training_batch import TrainingBatch, read_batch
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.kernels import pinned
from tests.benchmarks.bench_trainer import REPEATS, seconds, uneven_batch
from tests.benchmarks.records import Record, record

ROWS = 32
SETTINGS = RankSettings(micro_batch_tokens=2048)
SHAPE = {
    "vocab_size": 1000, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 2048,
}  # fmt: skip


class PackedLoop:
    """The training step of a script, with chains one after another in each row."""

    def __init__(self, model: Any) -> None:
        """Train a model of transformers."""
        self._model = model
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS.optimizer.lr)

    def step(self, batch: TrainingBatch) -> float:
        """One update; its loss."""
        self._optimizer.zero_grad()
        total = 0.0
        for rows in packs(batch.tokens.lengths, SETTINGS.micro_batch_tokens):
            loss = self._loss(batch, rows) / int(batch.actions.starts[-1])
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), SETTINGS.optimizer.clip_norm)
        self._optimizer.step()
        return total

    def _loss(self, batch: TrainingBatch, rows: Array) -> torch.Tensor:
        chains = [batch.tokens.values[slice(*batch.tokens.starts[row : row + 2])] for row in rows]
        tokens = torch.from_numpy(np.concatenate(chains))
        begins = np.cumsum([0, *map(len, chains[:-1])])
        at, owners = batch.actions.positions(rows)
        places = torch.from_numpy(begins[owners] + batch.actions.values[at])
        logits = self._model(
            input_ids=tokens[None],
            position_ids=torch.cat([torch.arange(len(chain)) for chain in chains])[None],
            use_cache=False,
            logits_to_keep=places - 1,
        ).logits[0]
        logprobs = torch.log_softmax(logits, -1).gather(-1, tokens[places, None]).squeeze(-1)
        ratio = (logprobs - torch.from_numpy(batch.behavior_logprobs[at])).exp()
        advantages = torch.from_numpy(batch.advantages[at])
        return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages).sum()


def run() -> list[Record]:
    """Records of the benchmark."""
    of: Any = AutoConfig
    make: Any = AutoModelForCausalLM
    torch.manual_seed(0)
    theirs = make.from_config(of.for_model("llama", **SHAPE), dtype=torch.float32)
    config = TransformersConfig.parse(theirs.config.to_dict())
    trainer = EmbeddedTrainer(config, TransformersModel(config, theirs).stored(), grpo(), SETTINGS)
    loop, (table, lengths) = PackedLoop(theirs), uneven_batch(0, ROWS)
    batch = read_batch(table)
    losses: dict[str, list[float]] = {"trainer": [], "script": []}

    def plain_step() -> None:
        with pinned(SETTINGS.threads):
            losses["script"].append(loop.step(batch))

    def step() -> None:
        losses["trainer"].append(trainer.train_step(trainer.version + 1, table).loss)

    spent: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(REPEATS):
        spent["script"].append(seconds(plain_step))
        spent["trainer"].append(seconds(step))
    assert np.allclose(losses["trainer"], losses["script"], rtol=1e-3, atol=1e-4), losses
    least = {name: min(each) for name, each in spent.items()}
    tokens = int(lengths.sum())
    return [
        record(
            "trainer: a model of transformers over a script of transformers and torch",
            least["script"] / least["trainer"], "x", at_least=0.95,
            peer=f"the script trains {tokens / least['script']:.0f} tokens/CPU s",
        )
    ]  # fmt: skip
