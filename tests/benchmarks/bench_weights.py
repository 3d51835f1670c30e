"""Benchmark of the weight stores: a model of 500 MB through Mooncake, beside files.

Both publish and read the same tensors in one process, in turns, so that the ratio says something on
a machine that others use as well. Files are written durably, on whatever disk the temporary folder
is; Mooncake's servers run beside on the same cores, over loopback.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from rollart_flow.weights import LocalWeightStore, WeightStore
from rollart_flow.weights.mooncake.servers import WeightServers, segment_bytes
from rollart_flow.weights.mooncake.store import MooncakeWeightStore
from tests.benchmarks.records import Record, record

_TENSORS = 20
_TENSOR_BYTES = 25_000_000
_ROUNDS = 3
_GIB = 1 << 30


def run() -> list[Record]:
    """All records; takes about a minute."""
    size = _TENSORS * _TENSOR_BYTES
    servers = WeightServers(segment_bytes(size, 1))
    try:
        with tempfile.TemporaryDirectory() as folder:
            files = LocalWeightStore(Path(folder) / "weights")
            memory = MooncakeWeightStore(servers.address, "bench")
            try:
                return list(_compared(memory, files, size))
            finally:
                memory.close()
    finally:
        servers.close()


def _compared(memory: WeightStore, files: WeightStore, size: int) -> Iterator[Record]:
    """Best of some rounds, each over both stores."""
    publish_s: dict[WeightStore, list[float]] = {memory: [], files: []}
    read_s: dict[WeightStore, list[float]] = {memory: [], files: []}
    for version in range(_ROUNDS):
        tensors = {
            f"layer.{number}": torch.full((_TENSOR_BYTES // 4,), float(version * 100 + number))
            for number in range(_TENSORS)
        }
        for store in (memory, files):
            publish_s[store].append(_seconds_to_publish(store, version, tensors))
            started = time.perf_counter()
            assert len(store.read(version)) == _TENSORS
            read_s[store].append(time.perf_counter() - started)
            store.retain(1)
    for what, seconds in (("publish", publish_s), ("read", read_s)):
        ours, theirs = min(seconds[memory]), min(seconds[files])
        peer = f"files {size / _GIB / theirs:.2f} GiB/s"
        yield record(f"weights: {what} through Mooncake", size / _GIB / ours, "GiB/s", peer=peer)
        yield record(f"weights: {what} through Mooncake against files", theirs / ours, "x")


def _seconds_to_publish(
    store: WeightStore, version: int, tensors: dict[str, torch.Tensor]
) -> float:
    started = time.perf_counter()
    store.publish(version, tensors)
    return time.perf_counter() - started
