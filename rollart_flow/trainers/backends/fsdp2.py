"""The trainer that shards the policy over ranks by torch's `fully_shard` (FSDP2).

Each rank holds its part of every parameter, gradient and optimizer tensor, and computes rows of its
own. A layer is gathered while it computes; gradients are summed, not averaged, since losses are
already normalized by the whole batch. Invariant: outside of a pass every parameter is sharded.

Source: ROLLART section 5.1 (ActorTrainCls); torch.distributed.fsdp.fully_shard.
"""

from collections.abc import Mapping, Sequence

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from rollart_flow.models.language_model import ModelShape
from rollart_flow.trainers.backends.distributed_trainer import DistributedTrainer
from rollart_flow.trainers.backends.sharded_checkpoint import ShardedState
from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.adapted_state import AdaptedState
from rollart_flow.trainers.step.critic import ValueHead
from rollart_flow.trainers.step.running import PolicyModel
from rollart_flow.trainers.step.train_state import InitialState


class Fsdp2Trainer(DistributedTrainer):
    """One rank of the trainer."""

    backend = "fsdp2"

    def _shard(
        self, initial: InitialState, settings: RankSettings, ranks: Ranks
    ) -> tuple[ShardedState, Ranks]:
        make = FsdpState if initial.lora is None else AdaptedFsdpState
        return make(initial, ranks), ranks


class FsdpState(ShardedState):
    """Model, head and optimizer; this process holds a shard of every tensor."""

    def settle(self) -> None:
        """Reshard weights that a pass without a gradient leaves gathered."""
        for root in (self.model, self.critic):
            for module in _shards(root):
                module.reshard()

    def _policy(self, shape: ModelShape, whole: Mapping[str, torch.Tensor]) -> PolicyModel:
        model = self._built(shape, whole)
        model.to(self._ranks.device)
        if self._ranks.count > 1:
            model.compute_everything()
        for layer in model.blocks():
            fully_shard(layer, mesh=self._ranks.mesh)
        fully_shard(model, mesh=self._ranks.mesh)
        _sum_gradients(model)
        return model

    def _placed(self, head: ValueHead) -> ValueHead:
        fully_shard(head.to(self._ranks.device), mesh=self._ranks.mesh)
        _sum_gradients(head)
        return head

    def _joined(self, parameter: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        like = {**self._trained, **self._head}[parameter]
        joined = parts[0] if self._stored is None else self._stored.join(parameter, parts)
        return self._laid_out(joined, like) if isinstance(like, DTensor) else joined


class AdaptedFsdpState(AdaptedState, FsdpState):
    """A frozen model with an adapter, both sharded; the adapter alone is trained.

    Every rank draws the whole adapter before it keeps a shard, so that a fresh one does not depend
    on the number of ranks.
    """


def _shards(root: object) -> list[FSDPModule]:
    modules = root.modules() if isinstance(root, torch.nn.Module) else ()
    return [module for module in modules if isinstance(module, FSDPModule)]


def _sum_gradients(root: torch.nn.Module) -> None:
    for module in _shards(root):
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        module.set_gradient_divide_factor(1.0)
