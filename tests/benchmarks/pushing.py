"""Versions on their way to files, S3 and Mooncake, for `bench_weights`.

Two waits are measured, each beside the push of the same version: of training, which publishes each
version beside its next step and the last one beside none; and of a reader in another process, from
the end of the push until it holds the version (ROLLART Table 4). The reader either follows the
version while it is pushed, or begins at the end of the push, as it did before.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

import torch

from rollart_flow.algorithms import grpo
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.checkpoint.publishing import Publisher
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.weights import LocalWeightStore, WeightStore, fingerprint
from rollart_flow.weights.following import Following
from rollart_flow.weights.mooncake.servers import MooncakeServers, segment_bytes
from rollart_flow.weights.mooncake.store import MooncakeWeightStore
from tests.benchmarks.pulling import weights_of
from tests.benchmarks.records import Record, record
from tests.s3.server import BUCKET, s3_server
from tests.trainers.cases import make_rows, table

EXPOSED_OF_PUSH = 10.0
_ROUNDS = 2
_STEPS = 16
_ROWS = 24
_SMALL = ModelConfig(
    vocab_size=8192,
    hidden_size=384,
    intermediate_size=1536,
    num_hidden_layers=8,
    num_attention_heads=6,
    num_key_value_heads=6,
    head_dim=64,
    max_position_embeddings=512,
)
"""A model of 84 MB, whose steps take a second with the rows below."""

Open = Callable[[], WeightStore]
"""Function that opens a store; processes are given it."""


@contextmanager
def stores() -> Iterator[dict[str, Open]]:
    """Stores by name, whose servers run on this machine while the context lasts."""
    with tempfile.TemporaryDirectory() as folder, s3_server(Path(folder) / "s3") as server:
        server.client().create_bucket(Bucket=BUCKET)
        mooncake = MooncakeServers(segment_bytes(600 << 20, 2))
        try:
            with patch.dict(os.environ, server.environment()):
                yield {
                    "files": partial(LocalWeightStore, f"{folder}/weights"),
                    "S3": partial(LocalWeightStore, f"s3://{BUCKET}/weights"),
                    "Mooncake": partial(MooncakeWeightStore, mooncake.address, "pushed"),
                }
        finally:
            mooncake.close()


def run() -> Iterator[Record]:
    """All records."""
    for measure in (_trained, _read):
        with stores() as opened:  # the S3 server frees no disk of what is removed
            for name, make in opened.items():
                yield measure(name, make)


def _trained(name: str, make: Open) -> Record:
    """The wait of training for the push of each of its versions, the copy to push included."""
    torch.manual_seed(0)
    weights = {key: tensor.detach() for key, tensor in Qwen3(_SMALL).named_parameters()}
    trainer = EmbeddedTrainer(_SMALL, weights, grpo(), RankSettings())
    publisher, push_s, exposed_s = Publisher(make()), list[float](), 0.0
    began = time.perf_counter()
    for step in range(1, _STEPS + 1):
        trainer.train_step(step, table(make_rows(_ROWS, step)))
        asked = time.perf_counter()
        publisher.finish()
        publisher.begin(
            trainer.version,
            trainer.snapshot_weights(),
            trainer.checksum,
            lambda _, seconds: push_s.append(seconds),
        )
        publisher.retain(1, ())
        exposed_s += time.perf_counter() - asked
    asked = time.perf_counter()
    publisher.finish()
    exposed_s += time.perf_counter() - asked
    return record(
        f"weights: exposed push through {name}, of the push",
        100 * exposed_s / sum(push_s),
        "%",
        at_most=EXPOSED_OF_PUSH,
        peer=f"{_STEPS} steps in {time.perf_counter() - began:.1f} s: push {sum(push_s):.1f} s, "
        f"training waited {exposed_s:.1f} s",
    )


def _read(name: str, make: Open) -> Record:
    """The wait of a reader after the push, with and without following it, in turns."""
    store = make()
    late, followed, push_s = list[float](), list[float](), list[float]()
    with _reader(make) as reader:
        for number in range(2 * _ROUNDS + 2):
            version, follows = 100 + number, number % 2 == 1
            tensors = weights_of(version)
            checksum = fingerprint(tensors)
            if follows:
                reader.send(version)
            began = time.perf_counter()
            store.publish(version, tensors, checksum)
            ended = time.perf_counter()
            if not follows:
                reader.send(version)
            exposed = max(0.0, reader.recv() - ended) / (ended - began)
            if number > 1:  # the first of each kind is for warming up
                (followed if follows else late).append(exposed)
                push_s.append(ended - began)
            store.retain(1)
    return record(
        f"weights: wait for {name} after the push, of the push",
        100 * statistics.median(followed),
        "%",
        at_most=EXPOSED_OF_PUSH,
        peer=f"{100 * statistics.median(late):.0f}% where the read begins at the end of the push; "
        f"pushes of {statistics.median(push_s):.2f} s",
    )


@contextmanager
def _reader(make: Open) -> Iterator[Connection]:
    """A process that answers each version with the time at which it holds it."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=_follow, args=(far, make))
    process.start()
    near.recv()
    try:
        yield near
    finally:
        near.send(None)
        process.join()


def _follow(end: Connection, make: Open) -> None:
    torch.set_num_threads(1)
    store = make()
    store.versions()
    end.send("ready")
    while (version := end.recv()) is not None:
        tensors = store.follow(version, Following())
        end.send(time.perf_counter())
        del tensors
