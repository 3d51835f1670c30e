"""Who of the ranks splits a layer with this one, and who shares rows with it.

Tensor ranks stand side by side, then copies of the model, then pipeline stages: Megatron's own
order. The invariant: every rank makes the same groups in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from rollart_flow.trainers.layout import Layout
from rollart_flow.trainers.megatron.core import ProcessGroupCollection
from rollart_flow.trainers.ranks import Ranks

DATA, TENSOR = "data", "tensor"


@dataclass(frozen=True, slots=True)
class Groups:
    """Process groups of one rank."""

    layout: Layout
    tensor: dist.ProcessGroup
    """Splits a layer with this rank."""
    data: dist.ProcessGroup
    """Has the same part of the model, and computes other rows."""
    alone: dist.ProcessGroup
    """This rank only, for what the model is not split by."""
    mesh: DeviceMesh
    """[data, tensor]"""
    tensor_rank: int
    data_rank: int

    def sharing(self, ranks: Ranks) -> Ranks:
        """The ranks, told who computes which rows."""
        return replace(ranks, share=self.data_rank, shares=self.layout.data, peers=self.data)

    def collection(self) -> Any:
        """As Megatron's modules take them; without them it would ask its process-wide state."""
        return ProcessGroupCollection(
            tp=self.tensor, dp=self.data, pp=self.alone, cp=self.alone, embd=None, pos_embd=None
        )


def make_groups(layout: Layout, ranks: Ranks) -> Groups:
    """The groups of a layout of all ranks; every rank calls this together, once for a layout."""
    return _made(layout, ranks.rank, ranks.device.type, ranks.timeout_s)


@cache
def _made(layout: Layout, rank: int, device: str, timeout_s: float) -> Groups:
    grid = torch.arange(layout.ranks).view(layout.data, layout.tensor)
    tensor = _own_of(grid.tolist(), rank, timeout_s)
    data = _own_of(grid.t().tolist(), rank, timeout_s)
    alone = _own_of(grid.view(-1, 1).tolist(), rank, timeout_s)
    mesh = DeviceMesh.from_group([data, tensor], device, mesh=grid, mesh_dim_names=(DATA, TENSOR))
    return Groups(layout, tensor, data, alone, mesh, rank % layout.tensor, rank // layout.tensor)


def _own_of(every: Sequence[Sequence[int]], rank: int, timeout_s: float) -> dist.ProcessGroup:
    """Make a group of each of these, and return the one that this rank is in."""
    patience = timedelta(seconds=timeout_s)
    made = [(ranks, dist.new_group(list(ranks), timeout=patience)) for ranks in every]
    own: dist.ProcessGroup = next(group for ranks, group in made if rank in ranks)
    return own
