"""The processes that train one policy together, and what they tell each other.

The invariant: whatever a rank learns here, every rank learns, so that all of them take the same
decision at the same place and none waits for one that went another way.

Trust: gloo and NCCL connections are neither encrypted nor authenticated, as all of Ray's are, so
that the network between trainer ranks must be closed to others. Beside those connections only the
rendezvous of rank 0 listens, on one address and a port that the system chose.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh

from rollart_flow.errors import TrainerError
from rollart_flow.trainers.ragged import Array

_CPU = torch.device("cpu")
LOOPBACK = "127.0.0.1"
COLLECTIVE_TIMEOUT_S = 600.0
"""Longest wait for the others in one exchange [s]. A rank that dies closes its connections and is
noticed at once; this is for one that hangs."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that train together; by default it is alone."""

    rank: int = 0
    count: int = 1
    device: torch.device = _CPU
    mesh: DeviceMesh | None = None
    """Of all ranks; None for a trainer that needs no process group."""
    background: dist.ProcessGroup | None = None
    """gloo, of all ranks: for a thread that writes while the others exchange."""

    def sum(self, values: Array) -> Array:
        """The sum over all ranks, in the dtype of `values`; every rank gives the same shape."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def max(self, value: float) -> float:
        """The largest value of all ranks."""
        return float(self._reduced(np.array([value]), dist.ReduceOp.MAX)[0])

    def _reduced(self, values: Array, operation: dist.ReduceOp.RedOpType) -> Array:
        if self.count == 1:
            return values
        tensor = torch.from_numpy(values.copy()).to(self.device)
        dist.all_reduce(tensor, operation)
        reduced: Array = tensor.cpu().numpy()
        return reduced


ALONE = Ranks()
"""A process that trains by itself."""


def training_device(rank: int) -> torch.device:
    """Where a rank trains: on a GPU of its node if it sees one, else on the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", rank % torch.cuda.device_count())
    return torch.device("cpu")


class Rendezvous:
    """Where the ranks meet: a store in rank 0, whose address the others are told."""

    def __init__(self, host: str, count: int) -> None:
        """Listen on one address of this machine, at a port that is free."""
        with socket.create_server((host, 0)) as listening:
            port = listening.getsockname()[1]
            self.address = f"{host}:{port}"
            self.store = TCPStore(
                host,
                port,
                count,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
                master_listen_fd=listening.detach(),
            )


def join_at(address: str, rank: int, count: int, own: Rendezvous | None = None) -> Ranks:
    """Become a rank of those that meet at `address` (`Rendezvous.address`).

    Args:
        address: where the first rank listens.
        rank: of this process.
        count: of ranks.
        own: the rendezvous itself, in the first rank.

    Raises:
        TrainerError: nobody answers there.
    """
    host, _, port = address.rpartition(":")
    with lost_rank(rank):
        patience = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
        store = own.store if own else TCPStore(host, int(port), count, timeout=patience)
    return join(store, rank, count, loopback=host == LOOPBACK)


def join(store: Store, rank: int, count: int, *, loopback: bool) -> Ranks:
    """Make this process a rank of a new process group: gloo on CPUs, NCCL on GPUs.

    Args:
        store: that all ranks share.
        rank: of this process.
        count: of ranks.
        loopback: all of them are on one machine, and gloo listens on its loopback device alone.

    Raises:
        TrainerError: another rank did not come.
    """
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    device = training_device(rank)
    # Checkpoints gather plans on the CPU, so that a group on GPUs has both backends.
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products
    with lost_rank(rank):
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
        )
        return joined()


@cache
def joined() -> Ranks:
    """The ranks that this process is one of; a world of its own where it has joined none."""
    if not dist.is_initialized():
        return join(HashStore(), 0, 1, loopback=True)
    rank, count = dist.get_rank(), dist.get_world_size()
    device = training_device(rank)
    mesh = DeviceMesh(device.type, list(range(count)))
    return Ranks(rank, count, device, mesh, dist.new_group(backend="gloo"))


@contextmanager
def lost_rank(rank: int) -> Iterator[None]:
    """Convert what a broken exchange raises, once, into one line."""
    try:
        yield
    except RuntimeError as error:
        said = " ".join(str(error).split())
        if isinstance(error, dist.DistError) or "gloo" in said:
            raise TrainerError(f"trainer rank {rank} lost the others: {said}") from error
        raise
