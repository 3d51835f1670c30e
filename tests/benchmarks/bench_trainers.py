"""Tokens that each trainer trains on, against a plain loop of transformers and torch.

The batch is 128 episodes of the demo's two domains, played with well-formed random actions, so that
lengths are the demo's; unlike the demo's, no two of them are attempts at one task. All sides take
the same step on the same rows, with one thread: GRPO, one update of AdamW. The plain loop takes
rows in stored order, as many as fit padded into as many tokens as ours, and computes logits
wherever there is a token, as training loops do. A second one sorts the rows and pads them in the
buckets that waste least. Figures are CPU seconds, in turn, the least of several rounds.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from rollart_flow import Policy
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.envs.examples import ExampleSettings
from rollart_flow.models.folder import load_folder
from rollart_flow.models.qwen3 import own_shape
from rollart_flow.models.version_zero import load_codec, materialize
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.backends.fsdp2 import Fsdp2Trainer
from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer
from rollart_flow.trainers.base import Trainer
from rollart_flow.trainers.batch.training_batch import read_batch
from rollart_flow.trainers.examples import ExamplePlayer, example_batches
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.kernels import pinned
from tests.benchmarks.plain import PlainLoop
from tests.benchmarks.records import Record, record

ROWS = 128
ROUNDS = 5
GOAL = 1.3
BY_LENGTH = "by length"
"""A plain loop whose rows are sorted by length."""
SETTINGS = RankSettings()
MAKERS = {"embedded": EmbeddedTrainer, "fsdp2": Fsdp2Trainer, "megatron": MegatronTrainer}


def demo_batch(policy: Policy, folder: Path) -> pa.Table:
    """Episodes of the demo as a stored batch, with advantages of both signs."""
    domains = (
        FrozenLake(size=4, brief=True),
        Arithmetic(digits=2, ops=("%",), right=(2,), format_penalty=0.5),
    )
    codec, settings = load_codec(folder), ExampleSettings(isolated=False)
    players = [ExamplePlayer(each, codec, 0, policy.max_context, settings) for each in domains]
    with example_batches(players) as batches:
        batches.begin(ROWS)
        table = batches.take()
    random = np.random.default_rng(0)
    advantages = pa.array(random.standard_normal((ROWS, 1)).tolist(), pa.list_(pa.float32()))
    logprobs = [
        [-2.0 if acted else 0.0 for acted in row] for row in table["action_mask"].to_pylist()
    ]
    table = table.drop_columns(["advantage", "logprobs"]).append_column("advantage", advantages)
    return table.append_column("logprobs", pa.array(logprobs, pa.list_(pa.float32())))


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
        shape, tensors = load_folder(folder)
        config = own_shape(shape, "benchmark")
        table = demo_batch(policy, folder)
    batch = read_batch(table)
    trainers: dict[str, Trainer] = {
        name: make(config, tensors, grpo(), RankSettings(backend=name))
        for name, make in MAKERS.items()
    }
    loops = {name: PlainLoop(config, tensors, SETTINGS) for name in ("plain", BY_LENGTH)}
    spent: dict[str, list[float]] = {name: [] for name in (*trainers, *loops)}

    losses: dict[str, list[float]] = {name: [] for name in spent}

    def plain_step(name: str) -> float:
        with pinned(SETTINGS.threads):
            return loops[name].step(batch, by_length=name == BY_LENGTH)

    for step in range(1, ROUNDS + 1):
        for name, trainer in trainers.items():
            train = trainer.train_step
            spent[name].append(
                cpu_seconds(lambda train=train, step=step: train(step, table).loss, losses[name])  # type: ignore[misc]
            )
        for name in loops:
            spent[name].append(cpu_seconds(lambda name=name: plain_step(name), losses[name]))  # type: ignore[misc]
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
        record(
            "trainer embedded: over a plain loop by length", rate["embedded"] / rate[BY_LENGTH],
            "x", at_least=1.0, peer=f"it has {rate[BY_LENGTH]:.0f} tokens/CPU s",
        ),
    ]  # fmt: skip
