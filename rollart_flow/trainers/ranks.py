"""The processes that train one policy together, and their exchanges.

The invariant: every exchange gives the same result in every rank, so that all of them take the same
decision at the same place and none waits for a rank that took another branch.

Trust: gloo and NCCL connections are neither encrypted nor authenticated, as all of Ray's are, so
that the network between trainer ranks must be closed to others. In addition, only the rendezvous of
rank 0 listens, on one address and a port that the system chose.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh

from rollart_flow.errors import RanksLostError, RollartError, SettingsError
from rollart_flow.models.device import CPU, use_gpu
from rollart_flow.trainers.batch.ragged import Array
from rollart_flow.trainers.layout import COLLECTIVE_TIMEOUT_S

LOOPBACK = "127.0.0.1"
_ANSWER_S = 10.0
"""Longest wait for an answer of ranks that may have failed in the same way [s]."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the ranks that train together; by default the only one."""

    rank: int = 0
    count: int = 1
    device: torch.device = CPU
    mesh: DeviceMesh | None = None
    """Device mesh of all ranks; None for a trainer without a process group."""
    background: dist.ProcessGroup | None = None
    """gloo, of all ranks: for a thread that writes while the others exchange."""
    watch: dist.ProcessGroup | None = None
    """gloo, of all ranks: used only to find out whether all ranks still answer."""
    replica: int = 0
    """Index of the model replica that this process belongs to, of `replicas`. Each replica computes
    rows of its own; ranks that split a layer are of one replica."""
    replicas: int = 1
    stages: int = 1
    """Pipeline stages of a replica; only the ranks of the last stage see losses."""
    peers: dist.ProcessGroup | None = None
    """One rank of each stage of each replica, this one included; None if each rank is a replica."""
    timeout_s: float = COLLECTIVE_TIMEOUT_S
    """Longest wait for the others in one exchange."""

    def sum(self, values: Array) -> Array:
        """Return the sum over all replicas, in the dtype of `values`.

        Every rank passes the same shape; ranks that see no losses pass zeros.
        """
        if self.replicas * self.stages == 1:
            return values
        return self._reduced(values, dist.ReduceOp.SUM, self.peers)

    def max(self, value: float) -> float:
        """Return the maximum over all ranks."""
        if self.count == 1:
            return value
        return float(self._reduced(np.array([value]), dist.ReduceOp.MAX, None)[0])

    def told(self, text: str, group: dist.ProcessGroup | None = None) -> list[str]:
        """Return the texts of all ranks of a group, in order; by default of all ranks. No text is
        empty.
        """
        said = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(self.device)
        count = dist.get_world_size(group)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(count)]
        dist.all_gather(sizes, torch.tensor([len(said)], device=self.device), group)
        longest = max(int(size) for size in sizes)
        every = [torch.zeros(longest, dtype=torch.uint8, device=self.device) for _ in sizes]
        padded = torch.nn.functional.pad(said, (0, longest - len(said)))
        dist.all_gather(every, padded, group)
        return [
            bytes(each[: int(size)].tolist()).decode()
            for each, size in zip(every, sizes, strict=True)
        ]

    def all_answer(self) -> bool:
        """Return whether every rank makes this call too within a short time."""
        try:
            dist.monitored_barrier(self.watch, timedelta(seconds=min(_ANSWER_S, self.timeout_s)))
        except RuntimeError:
            return False
        return True

    def _reduced(
        self, values: Array, operation: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None
    ) -> Array:
        tensor = torch.from_numpy(values.copy()).to(self.device)
        dist.all_reduce(tensor, operation, group)
        reduced: Array = tensor.cpu().numpy()
        return reduced


ALONE = Ranks()
"""A process that trains by itself."""


def training_device(rank: int) -> torch.device:
    """The device of a rank: a GPU of its node if the process sees one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", rank % torch.cuda.device_count())
    return CPU


class Rendezvous:
    """The rendezvous of all ranks: a store in rank 0, at an address that the others are given."""

    def __init__(self, host: str, count: int, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> None:
        """Listen on one address of this machine, at a free port."""
        with socket.create_server((host, 0)) as listening:
            port = listening.getsockname()[1]
            self.address = f"{host}:{port}"
            self.store = TCPStore(
                host,
                port,
                count,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
                master_listen_fd=listening.detach(),
            )


def join_at(
    address: str,
    rank: int,
    count: int,
    own: Rendezvous | None = None,
    timeout_s: float = COLLECTIVE_TIMEOUT_S,
) -> Ranks:
    """Become a rank of those that meet at `address` (`Rendezvous.address`).

    Args:
        address: where the first rank listens.
        rank: rank of this process.
        count: number of ranks.
        own: rendezvous of the first rank; None in the others.
        timeout_s: longest wait for the first rank's store, and for the others in each exchange.

    Raises:
        RanksLostError: no process answers at the address, or another rank did not join.
        SettingsError: two ranks compute on the same GPU.
    """
    host, _, port = address.rpartition(":")
    try:
        patience = timedelta(seconds=timeout_s)
        store = own.store if own else TCPStore(host, int(port), count, timeout=patience)
        return _join(store, rank, count, patience, loopback=host == LOOPBACK)
    except RuntimeError as error:
        raise _lost(rank, error) from error


@cache
def by_itself() -> Ranks:
    """This process as the only rank of a process group."""
    patience = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    return _join(HashStore(), 0, 1, patience, loopback=True)


def _join(store: Store, rank: int, count: int, patience: timedelta, *, loopback: bool) -> Ranks:
    """Make this process a rank of a new process group: gloo on CPUs, NCCL on GPUs.

    Args:
        store: store that all ranks share.
        rank: rank of this process.
        count: number of ranks.
        patience: longest wait for the others in each exchange.
        loopback: whether all ranks are on one machine, so that gloo uses its loopback device only.
    """
    device = training_device(rank)
    # Ranks come as soon as they have loaded their packages; exchanges begin when all are there.
    store.set(_here(rank), _gpu_of(device))
    store.wait([_here(each) for each in range(count)], timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    refuse_shared_gpu([store.get(_here(each)).decode() for each in range(count)])
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # Checkpoints gather plans on the CPU, so that a group on GPUs has both backends.
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    if device.type == "cuda":
        use_gpu(device)
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=patience)
    background, watch = (dist.new_group(backend="gloo", timeout=patience) for _ in range(2))
    mesh = DeviceMesh(device.type, list(range(count)))
    return Ranks(
        rank,
        count,
        device,
        mesh,
        background,
        watch,
        replica=rank,
        replicas=count,
        timeout_s=patience.total_seconds(),
    )


def _here(rank: int) -> str:
    return f"rank {rank} is here"


def _gpu_of(device: torch.device) -> str:
    """Return the id of a GPU that no other GPU anywhere has; empty for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def refuse_shared_gpu(gpus: Sequence[str]) -> None:
    """Refuse two ranks on one GPU, which NCCL cannot connect.

    Args:
        gpus: id of each rank's GPU, in the order of the ranks; empty for a rank on a CPU.

    Raises:
        SettingsError: two ranks compute on the same GPU.
    """
    first: dict[str, int] = {}
    for rank, gpu in enumerate(gpus):
        if gpu and first.setdefault(gpu, rank) != rank:
            raise SettingsError(
                f"trainer ranks {first[gpu]} and {rank} would share one GPU; give each rank a GPU "
                "of its own, or train with fewer ranks"
            )


@contextmanager
def lost_rank(ranks: Ranks) -> Iterator[None]:
    """Convert the error of a broken exchange, once, into one line.

    Backends raise RuntimeError, as torch does for anything. If all ranks still answer after one, no
    exchange was broken: all of them met the same error.

    Raises:
        RanksLostError: a rank does not answer any more; this one cannot go on either.
    """
    try:
        yield
    except RollartError:
        raise
    except RuntimeError as error:
        if ranks.count == 1 or ranks.all_answer():
            raise
        raise _lost(ranks.rank, error) from error


def _lost(rank: int, error: Exception) -> RanksLostError:
    said = " ".join(str(error).split())
    return RanksLostError(f"trainer rank {rank} lost the others: {said}")
