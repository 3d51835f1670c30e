"""The gain of packing: one training step of the embedded trainer against one padded batch.

64 multi-turn trajectories of uneven lengths (the longest several times the mean) on the model of
`Policy.tiny()`, one thread; and 64 whose lengths vary four times, evenly, against rows that are
padded bucket by bucket. All sides run the same code on the same rows in turn; the padded batch has
all rows padded to the longest, and takes one forward and backward pass.

Then the gain of merged prefixes: episodes whose branches are a binary tree, against rows of equal
lengths that share nothing, as their first tokens differ.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
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
EPISODES, PROMPT, OWN = 4, 128, 96
"""Episodes of a batch of trees; tokens of their prompt, and of each branch."""
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
    """(rows as the trainer takes them, their lengths); the longest is several times the mean."""
    lengths = np.random.default_rng(seed).lognormal(5.0, 0.8, rows).clip(40, 1600).astype(int)
    return batch_of(lengths, seed), lengths


def batch_of(lengths: np.ndarray[Any, Any], seed: int) -> pa.Table:
    """Rows of these lengths as the trainer takes them: half of all tokens are actions."""
    random, rows = np.random.default_rng(seed), len(lengths)
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
    return table.append_column("weight", pa.array([1.0] * rows))


def tree_batch(branches: int, *, merged: bool) -> pa.Table:
    """Rows of 4 episodes: branch k leaves branch (k - 1) // 2 at its end, with 96 own tokens."""
    random, chains = np.random.default_rng(branches), list[list[int]]()
    for episode in range(EPISODES):
        own: list[list[int]] = []
        for branch in range(branches):
            before = own[(branch - 1) // 2] if branch else [episode] * PROMPT
            own.append([*before, *random.integers(0, 100, OWN).tolist()])
        chains += own
    lengths = np.array([len(chain) for chain in chains])
    table = batch_of(lengths, branches)
    mask = [[False] * (n - OWN) + (np.arange(OWN) // 10 % 2 == 1).tolist() for n in lengths]
    if not merged:
        chains = [[place % 100, *chain[1:]] for place, chain in enumerate(chains)]
    numbers = np.tile(np.arange(branches), EPISODES)
    episodes = np.repeat(np.arange(EPISODES), branches).astype(str)
    for name, values in (("token_ids", chains), ("action_mask", mask)):
        place = table.column_names.index(name)
        table = table.set_column(place, table.field(name), pa.array(values, table.field(name).type))
    table = table.append_column("branch", pa.array(numbers, pa.int32()))
    return table.append_column("episode_id", pa.array(episodes.tolist()))


def merging() -> list[Record]:
    """Records of the gain of merged prefixes."""
    found = []
    for branches in (2, 4, 8, 16):
        sides = {merged: tree_batch(branches, merged=merged) for merged in (True, False)}
        model = Qwen3(CONFIG)
        model.initialize(0)
        trainers = {
            merged: EmbeddedTrainer(CONFIG, model.state_dict(), grpo(), RankSettings())
            for merged in sides
        }
        spent: dict[bool, list[float]] = {merged: [] for merged in sides}
        for _ in range(REPEATS):
            for merged, trainer in trainers.items():
                step = partial(trainer.train_step, trainer.version + 1, sides[merged])
                spent[merged].append(seconds(step))
        rows = read_batch(sides[True])
        tokens = int(rows.used_lengths.sum())
        distinct = rows.micro_batch(np.arange(rows.rows), CONFIG.vocab_size).token_ids.numel()
        found.append(
            record(
                f"trainer: merged prefixes of {branches} branches over none",
                min(spent[False]) / min(spent[True]), "x", at_least=1.0,
                peer=f"{tokens} tokens, of which {distinct} are computed",
            )
        )  # fmt: skip
    return found


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def run() -> list[Record]:
    """Records of the benchmark."""
    table, lengths = uneven_batch(0)
    even = batch_of(np.random.default_rng(1).permutation(np.linspace(60, 240, ROWS, dtype=int)), 1)
    model = Qwen3(CONFIG)
    model.initialize(0)
    settings = RankSettings()
    packed, bucketed = (
        EmbeddedTrainer(CONFIG, model.state_dict(), grpo(), replace(settings, packed=each))
        for each in (True, False)
    )
    updater = Updater(model, grpo(), None, settings.micro_batch_tokens)
    optimizer = settings.optimizer.build(model.parameters())

    def padded_step(rows: pa.Table) -> None:
        """The whole batch in one padded pass, then the same update."""
        batch = read_batch(rows, packed=False)
        with pinned(settings.threads):
            optimizer.zero_grad()
            scale = 1.0 / batch.actions.starts[-1]
            whole = updater.passing(batch, np.arange(ROWS), scale, 1.0, Tally())
            OneByOne(model)(iter([whole]), 1, gradient=True)
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.clip_norm)
            optimizer.step()

    def step_of(trainer: EmbeddedTrainer, rows: pa.Table) -> Callable[[], object]:
        return lambda: trainer.train_step(trainer.version + 1, rows)

    sides: dict[str, Callable[[], object]] = {
        "packed": step_of(packed, table),
        "padded": partial(padded_step, table),
        "even packed": step_of(packed, even),
        "even bucketed": step_of(bucketed, even),
        "even padded": partial(padded_step, even),
    }
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(REPEATS):
        for name, step in sides.items():
            spent[name].append(seconds(step))
    least = {name: min(each) for name, each in spent.items()}
    tokens = int(lengths.sum())
    parts = buckets(read_batch(even).used_lengths, settings.micro_batch_tokens)
    told = f"padded by buckets {least['even bucketed'] / least['even packed']:.2f} x as long"
    return [
        record("trainer: tokens trained, packed", tokens / least["packed"], "tokens/CPU s"),
        record("trainer: tokens trained, padded", tokens / least["padded"], "tokens/CPU s"),
        record("trainer: packed over padded", least["padded"] / least["packed"], "x"),
        record(
            "trainer: packed over padded, lengths that vary four times",
            least["even padded"] / least["even packed"], "x", at_least=1.0,
            peer=f"{told}, in {len(parts)} buckets",
        ),
        record(
            "trainer: padding, padded", ROWS * int(lengths.max()) / tokens - 1, "padding/tokens"
        ),
        *merging(),
    ]  # fmt: skip
