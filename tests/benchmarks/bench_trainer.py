"""The gain of bucketing: one training step of the embedded trainer against one padded batch.

64 multi-turn trajectories of uneven lengths (the longest several times the mean) on the model of
`Policy.tiny()`, one thread. Both sides run the same code on the same rows in turn; the peer pads
all rows to the longest and takes one forward and backward pass.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from rollart_flow.algorithms import grpo
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.schema import row_schema
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.batch.passes import buckets
from rollart_flow.trainers.batch.training_batch import read_batch
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.kernels import pinned
from rollart_flow.trainers.step.running import OneByOne
from rollart_flow.trainers.step.update import Tally, Updater
from rollart_flow.types import Sampling
from tests.benchmarks.records import Record, record

ROWS = 64
REPEATS = 5
CONFIG = ModelConfig(
    vocab_size=100,
    hidden_size=64,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=2048,
)


def uneven_batch(seed: int, rows: int = ROWS) -> tuple[pa.Table, np.ndarray[Any, Any]]:
    """(rows as the trainer takes them, their lengths): half of all tokens are actions."""
    random = np.random.default_rng(seed)
    lengths = random.lognormal(5.0, 0.8, rows).clip(40, 1600).astype(int)
    columns: dict[str, list[Any]] = {
        "token_ids": [random.integers(0, 100, n).tolist() for n in lengths],
        "action_mask": [(np.arange(n) // 10 % 2 == 1).tolist() for n in lengths],
        "logprobs": [np.full(n, -4.6).tolist() for n in lengths],
        "sampling": [asdict(Sampling())] * rows,
        "kept_token_ids": [None] * rows,
    }
    declared = row_schema("trajectories")
    table = pa.table({name: pa.array(columns[name], declared.field(name).type) for name in columns})
    advantages = random.standard_normal((rows, 1)).tolist()
    table = table.append_column("advantage", pa.array(advantages, pa.list_(pa.float32())))
    return table.append_column("weight", pa.array([1.0] * rows)), lengths


def seconds(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def run() -> list[Record]:
    """Records of the benchmark."""
    table, lengths = uneven_batch(0)
    model = Qwen3(CONFIG)
    model.initialize(0)
    settings = RankSettings()
    trainer = EmbeddedTrainer(CONFIG, model.state_dict(), grpo(), settings)
    updater = Updater(model, grpo(), None, settings.micro_batch_tokens)
    optimizer = settings.optimizer.build(model.parameters())

    def padded_step() -> None:
        """The whole batch in one padded pass, then the same update."""
        batch = read_batch(table)
        with pinned(settings.threads):
            optimizer.zero_grad()
            scale = 1.0 / batch.actions.starts[-1]
            whole = updater.passing(batch, np.arange(ROWS), scale, 1.0, Tally())
            OneByOne(model)(iter([whole]), 1, gradient=True)
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.clip_norm)
            optimizer.step()

    ours, padded = [], []
    for step in range(1, REPEATS + 1):
        ours.append(seconds(lambda step=step: trainer.train_step(step, table)))  # type: ignore[misc]
        padded.append(seconds(padded_step))
    tokens = int(lengths.sum())
    parts = buckets(read_batch(table).used_lengths, settings.micro_batch_tokens)
    area = sum(len(rows) * int(lengths[rows].max()) for rows in parts)
    return [
        record("trainer: tokens trained, bucketed", tokens / min(ours), "tokens/s"),
        record("trainer: the same, padded to the longest", tokens / min(padded), "tokens/s"),
        record("trainer: bucketed over padded", min(padded) / min(ours), "x"),
        record("trainer: padding, bucketed", area / tokens - 1, "padding/tokens"),
        record(
            "trainer: padding, padded", ROWS * int(lengths.max()) / tokens - 1, "padding/tokens"
        ),
    ]
