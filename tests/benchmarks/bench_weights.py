"""Benchmark of the weight stores: a model of 500 MB through Mooncake (ROLLART Table 4).

It measures the waits of training and of a reader for each push (`pushing`); the wait of rollout
while two engines pull and decode; and the time of a store beside the library's own calls on one
registered buffer and beside files, in one process and in turns, so that the ratio is meaningful on
a shared machine. As in a run, the checksum of a version is known when it is published: its training
step has taken it. Files are written durably, on whatever disk the temporary folder is; the servers
of S3 and Mooncake run on the same cores, over loopback.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from rollart_flow.weights import LocalWeightStore, fingerprint
from rollart_flow.weights.buckets import BUCKET_BYTES
from rollart_flow.weights.mooncake.client import MooncakeClient
from rollart_flow.weights.mooncake.servers import MooncakeServers, segment_bytes
from rollart_flow.weights.mooncake.store import MooncakeWeightStore
from tests.benchmarks import pushing
from tests.benchmarks.pulling import Swap, readers, weights_of
from tests.benchmarks.records import Record, record

_ROUNDS = 2
_READERS = 2
_GIB = 1 << 30
_RUN = "bench"
EXPOSED_OF_NAIVE = 5.0
EXPOSED_OF_PULL = 20.0
OF_RAW = 0.7


def run() -> Iterator[Record]:
    """All records; takes some minutes on two cores."""
    yield from pushing.run()
    size = sum(tensor.nbytes for tensor in weights_of(0).values())
    servers = MooncakeServers(segment_bytes(size, 2 * _ROUNDS))
    store = MooncakeWeightStore(servers.address, _RUN)
    try:
        yield from _exposed(store, servers.address)
        yield from _compared(store, servers.address, size)
    finally:
        store.close()
        servers.close()


def _exposed(store: MooncakeWeightStore, address: str) -> Iterator[Record]:
    """Push and pulls of some versions in turn, each under a rollout of the same length."""
    push_s: list[float] = []
    swaps: list[list[Swap]] = []
    with readers(address, _RUN, _READERS) as ends:
        for version in range(1, _ROUNDS + 1):
            tensors = weights_of(version)
            checksum = fingerprint(tensors)
            push_s.append(_seconds(partial(store.publish, version, tensors, checksum)))
            for end in ends:
                end.send(version)
            swaps.append([end.recv() for end in ends])
            store.retain(1)
    push = statistics.median(push_s)
    pull = statistics.median(sum(swap.pull.pull_s for swap in each) for each in swaps)
    exposed = statistics.median(max(swap.pull.exposed_s for swap in each) for each in swaps)
    decode = statistics.median(swap.decode_s for each in swaps for swap in each)
    load = statistics.median(swap.load_s for each in swaps for swap in each)
    peer = f"push {push:.2f} s, pulls {pull:.2f} s, exposed {exposed:.3f} s"
    yield record(
        "weights: exposed pull, of push and pulls",
        100 * exposed / (push + pull),
        "%",
        at_most=EXPOSED_OF_NAIVE,
        peer=peer,
    )
    yield record(
        "weights: exposed pull, of the accumulated pull",
        100 * exposed / pull,
        "%",
        at_most=EXPOSED_OF_PULL,
        peer=f"{_READERS} engines decode for {decode:.1f} s, then load for {load:.2f} s",
    )


def _compared(store: MooncakeWeightStore, address: str, size: int) -> Iterator[Record]:
    """Best of some rounds, each over the store, the library alone, and files."""
    seconds: dict[str, list[float]] = {}

    def timed(what: str, call: Callable[[], object]) -> None:
        seconds.setdefault(what, []).append(_seconds(call))

    with tempfile.TemporaryDirectory() as folder:
        files, raw = LocalWeightStore(Path(folder) / "weights"), RawCalls(address, size)
        for version in range(100, 100 + _ROUNDS):
            tensors = weights_of(version)
            checksum = fingerprint(tensors)
            timed("publish", partial(store.publish, version, tensors, checksum))
            timed("raw put", partial(raw.put, version))
            timed("files publish", partial(files.publish, version, tensors, checksum))
            timed("read", partial(store.read, version))
            timed("raw get", partial(raw.get, version))
            timed("files read", partial(files.read, version))
            store.retain(1)
            files.retain(1)
        raw.close()
    best = {what: min(each) for what, each in seconds.items()}
    for what, call in (("publish", "raw put"), ("read", "raw get")):
        yield record(
            f"weights: {what} through Mooncake",
            size / _GIB / best[what],
            "GiB/s",
            peer=f"{call} {size / _GIB / best[call]:.2f}, "
            f"files {size / _GIB / best['files ' + what]:.2f} GiB/s",
        )
        yield record(f"weights: {what} against {call}", best[call] / best[what], "x")
    yield record(
        "weights: publish and read against the library's own put_from and get_into",
        (best["raw put"] + best["raw get"]) / (best["publish"] + best["read"]),
        "x",
        at_least=OF_RAW,
        peer="whose buffer is reused, and which check nothing",
    )


class RawCalls:
    """put_from and get_into alone, on one registered buffer."""

    def __init__(self, address: str, size: int) -> None:
        self._client = MooncakeClient(address)
        (self._buffer, _) = self._client.staging(size)
        self._buffer.random_()

    def put(self, version: int) -> None:
        """Store all buckets under new keys."""
        for key, part in self._parts(version):
            self._client.put_part(key, part)

    def get(self, version: int) -> None:
        """Read all buckets into the same buffer."""
        for key, part in self._parts(version):
            self._client.get_part(key, part)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _parts(self, version: int) -> Iterator[tuple[str, torch.Tensor]]:
        for begin in range(0, self._buffer.numel(), BUCKET_BYTES):
            yield f"raw/{version}/{begin}", self._buffer[begin : begin + BUCKET_BYTES]


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
