"""Process groups of the ranks that split a layer and of those that compute the same rows.

Ranks are ordered by pipeline stage, then copy of the model, then tensor rank, as in Megatron. The
invariant: every rank creates the same groups in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from rollart_flow.trainers.backends.megatron.core import ProcessGroupCollection
from rollart_flow.trainers.layout import Layout
from rollart_flow.trainers.ranks import Ranks

DATA, TENSOR = "data", "tensor"


@dataclass(frozen=True, slots=True)
class Groups:
    """Process groups of one rank."""

    layout: Layout
    tensor: dist.ProcessGroup
    """Ranks that split a layer with this rank."""
    data: dist.ProcessGroup
    """Ranks with the same part of the model, which compute other rows."""
    pipeline: dist.ProcessGroup
    """Ranks with the same part of the other layers, for the same rows; first stage first."""
    embedding: dist.ProcessGroup
    """Both ends of `pipeline`, which share the embedding if it is the output projection too.

    For a rank between the ends, the group holds that rank alone.
    """
    whole: dist.ProcessGroup
    """All ranks of the same copy of the model."""
    peers: dist.ProcessGroup
    """Ranks with the same part of every layer, for all rows."""
    alone: dist.ProcessGroup
    """This rank alone, for dimensions that do not split the model."""
    mesh: DeviceMesh
    """[data, tensor], of this stage"""
    tensor_rank: int
    data_rank: int
    stage: int

    @property
    def first(self) -> bool:
        """Whether this stage has the embedding."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether this stage has the output projection."""
        return self.stage == self.layout.pipeline - 1

    def with_replicas(self, ranks: Ranks) -> Ranks:
        """Return the ranks with their replicas assigned."""
        return replace(
            ranks,
            replica=self.data_rank,
            replicas=self.layout.data,
            stages=self.layout.pipeline,
            peers=self.peers,
        )

    def collection(self, *, with_embedding: bool = False) -> Any:
        """Return the groups as Megatron's collection, which it uses instead of process-wide state.

        Args: `with_embedding` is for summing gradients. A module that is built with an embedding
            group would copy the embedding over it, although both ends have it already.
        """
        return ProcessGroupCollection(
            tp=self.tensor,
            dp=self.data,
            dp_cp=self.data,
            pp=self.pipeline,
            mp=self.whole,
            cp=self.alone,
            ep=self.alone,
            expt_tp=self.tensor,
            expt_dp=self.data,
            tp_ep=self.tensor,
            tp_cp=self.tensor,
            tp_dp_cp=None,
            tp_ep_pp=self.whole,
            intra_dist_opt=dist.group.WORLD,
            embd=self.embedding if with_embedding else None,
            pos_embd=None,
        )


def make_groups(layout: Layout, ranks: Ranks) -> Groups:
    """Create the groups of a layout; every rank calls this together, once for a layout."""
    return _made(layout, ranks.rank, ranks.device.type, ranks.timeout_s)


@cache
def _made(layout: Layout, rank: int, device: str, timeout_s: float) -> Groups:
    grid = torch.arange(layout.ranks).view(layout.pipeline, layout.data, layout.tensor)
    stage, data_rank, tensor_rank = (int(at) for at in (grid == rank).nonzero()[0])

    def own(every: Sequence[Sequence[int]]) -> dist.ProcessGroup:
        return _own_of(every, rank, timeout_s)

    tensor = own(grid.flatten(0, 1).tolist())
    data = own(grid.transpose(1, 2).flatten(0, 1).tolist())
    alone = own(grid.view(-1, 1).tolist())
    pipeline = whole = peers = embedding = alone
    if layout.pipeline == 1:
        whole, peers = tensor, data
    else:
        stages = grid.flatten(1).t()
        pipeline = own(stages.tolist())
        between = grid[1:-1].reshape(-1, 1)
        embedding = own([*stages[:, [0, -1]].tolist(), *between.tolist()])
        whole = own(grid.transpose(0, 1).flatten(1).tolist())
        peers = own(grid.flatten(0, 1).t().tolist())
    mesh = DeviceMesh.from_group(
        [data, tensor], device, mesh=grid[stage], mesh_dim_names=(DATA, TENSOR)
    )
    return Groups(
        layout, tensor, data, pipeline, embedding, whole, peers, alone,
        mesh, tensor_rank, data_rank, stage,
    )  # fmt: skip


def _own_of(every: Sequence[Sequence[int]], rank: int, timeout_s: float) -> dist.ProcessGroup:
    """Create a group for each list of ranks, and return the one of this rank."""
    patience = timedelta(seconds=timeout_s)
    made = [(ranks, dist.new_group(list(ranks), timeout=patience)) for ranks in every]
    own: dist.ProcessGroup = next(group for ranks, group in made if rank in ranks)
    return own
