"""Tokens that each trainer trains on, against a plain loop of transformers and torch.

The batch is 128 episodes of the demo's two domains, played with well-formed random actions, so that
lengths are the demo's. All sides take the same step on the same rows, with one thread: GRPO, one
update of AdamW. The plain loop takes rows in stored order, as many as fit padded into as many
tokens as ours, and computes logits wherever there is a token, as training loops do. Figures are CPU
seconds, in turn, the least of several rounds.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from rollart_flow import Policy
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.models.folder import load_folder
from rollart_flow.models.policy import load_codec, materialize
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.base import Trainer
from rollart_flow.trainers.batch import TrainingBatch, read_batch
from rollart_flow.trainers.embedded import EmbeddedTrainer
from rollart_flow.trainers.fsdp2 import Fsdp2Trainer
from rollart_flow.trainers.kernels import pinned
from rollart_flow.trainers.megatron.trainer import MegatronTrainer
from rollart_flow.trainers.registry import TrainerSettings
from rollart_flow.trainers.warm_start import _episodes, _table
from tests.benchmarks.records import Record, record

ROWS = 128
ROUNDS = 5
GOAL = 1.3
SETTINGS = TrainerSettings()
MAKERS = {"embedded": EmbeddedTrainer, "fsdp2": Fsdp2Trainer, "megatron": MegatronTrainer}


def demo_batch(policy: Policy, folder: Path) -> pa.Table:
    """Episodes of the demo as a stored batch, with advantages of both signs."""
    domains = (
        FrozenLake(size=4, brief=True),
        Arithmetic(digits=2, ops=("%",), right=(2,), format_penalty=0.5),
    )
    with closing(_episodes(domains, load_codec(folder), 0, policy.max_context)) as played:
        table = _table(list(islice(played, ROWS)))
    random = np.random.default_rng(0)
    advantages = pa.array(random.standard_normal((ROWS, 1)).tolist(), pa.list_(pa.float32()))
    logprobs = [
        [-2.0 if acted else 0.0 for acted in row] for row in table["action_mask"].to_pylist()
    ]
    table = table.drop_columns(["advantage", "logprobs"]).append_column("advantage", advantages)
    return table.append_column("logprobs", pa.array(logprobs, pa.list_(pa.float32())))


class PlainLoop:
    """The same step as a script would take it."""

    def __init__(self, config: ModelConfig, tensors: dict[str, torch.Tensor]) -> None:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        make: Any = Qwen3ForCausalLM
        names = (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
            "rms_norm_eps", "tie_word_embeddings",
        )  # fmt: skip
        values = {name: getattr(config, name) for name in names}
        rope = {"rope_type": "default", "rope_theta": config.rope_theta}
        self._model = make(Qwen3Config(**values, rope_parameters=rope))
        self._model.load_state_dict(tensors, strict=False)
        self._model.tie_weights()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=SETTINGS.optimizer.lr)

    def step(self, batch: TrainingBatch) -> float:
        """One update; its loss."""
        self._optimizer.zero_grad()
        actions, total = int(batch.actions.starts[-1]), 0.0
        for rows in _in_order(batch):
            loss = self._loss(batch, rows) / actions
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), SETTINGS.optimizer.clip_norm)
        self._optimizer.step()
        return total

    def _loss(self, batch: TrainingBatch, rows: range) -> torch.Tensor:
        """Clipped, summed over action tokens."""
        chains = [batch.tokens.values[slice(*batch.tokens.starts[row : row + 2])] for row in rows]
        tokens = torch.nn.utils.rnn.pad_sequence(
            [torch.from_numpy(chain) for chain in chains], batch_first=True
        )
        logits = self._model(tokens).logits[:, :-1]
        every = torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
        at, owners = batch.actions.positions(np.asarray(rows))
        logprobs = every[torch.from_numpy(owners), torch.from_numpy(batch.actions.values[at] - 1)]
        ratio = (logprobs - torch.from_numpy(batch.behavior_logprobs[at])).exp()
        advantages = torch.from_numpy(batch.advantages[at])
        clipped = ratio.clamp(0.8, 1.28) * advantages
        return -torch.minimum(ratio * advantages, clipped).sum()


def _in_order(batch: TrainingBatch) -> list[range]:
    """Rows of each pass: as many as fit."""
    lengths, cuts, longest = batch.tokens.lengths, [0], 0
    for row, length in enumerate(lengths):
        longest = max(longest, int(length))
        if (row + 1 - cuts[-1]) * longest > SETTINGS.micro_batch_tokens:
            cuts.append(row)
            longest = int(length)
    return [range(*pair) for pair in zip(cuts, [*cuts[1:], batch.rows], strict=True)]


def cpu_seconds(call: Callable[[], float], answers: list[float]) -> float:
    """CPU seconds of one call, whose answer is kept."""
    start = time.process_time()
    answers.append(call())
    return time.process_time() - start


def run() -> list[Record]:
    """Records of the benchmark."""
    policy = Policy.tiny()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "model")
        materialize(policy, folder)
        config, tensors = load_folder(folder)
        table = demo_batch(policy, folder)
    batch = read_batch(table)
    trainers: dict[str, Trainer] = {
        name: make(config, tensors, grpo(), TrainerSettings(backend=name))
        for name, make in MAKERS.items()
    }
    plain = PlainLoop(config, tensors)
    spent: dict[str, list[float]] = {name: [] for name in (*trainers, "plain")}

    losses: dict[str, list[float]] = {name: [] for name in spent}

    def plain_step() -> float:
        with pinned(SETTINGS.threads):
            return plain.step(batch)

    for step in range(1, ROUNDS + 1):
        for name, trainer in trainers.items():
            train = trainer.train_step
            spent[name].append(
                cpu_seconds(lambda train=train, step=step: train(step, table).loss, losses[name])  # type: ignore[misc]
            )
        spent["plain"].append(cpu_seconds(plain_step, losses["plain"]))
    for name, found in losses.items():
        assert np.allclose(found[0], losses["plain"][0], atol=1e-4), f"{name}: another loss"
    tokens = int(batch.tokens.starts[-1])
    rate = {name: tokens / min(seconds) for name, seconds in spent.items()}
    told = f"a plain loop {rate['plain']:.0f} tokens/CPU s"
    return [
        *(
            record(f"trainer {name}: tokens trained", rate[name], "tokens/CPU s", peer=told)
            for name in trainers
        ),
        *(
            record(
                f"trainer {name}: over a plain loop", rate[name] / rate["plain"], "x",
                at_least=GOAL, peer=told,
            )
            for name in trainers
        ),
    ]  # fmt: skip
