"""The trainer that splits the policy's layers over ranks with Megatron-core.

The invariant: that of `DistributedTrainer`; ranks that split a layer, and the stages of a pipeline,
compute the same rows.

Source: ROLLART section 5.1 (ActorTrainCls); Megatron-LM (1909.08053) section 3, tensor parallel;
(2104.04473) section 2.2, pipeline parallel.
"""

from rollart_flow.models.qwen3 import own_shape
from rollart_flow.trainers.backends.distributed_trainer import DistributedTrainer
from rollart_flow.trainers.backends.megatron.capabilities import capabilities, check_installed
from rollart_flow.trainers.backends.sharded_checkpoint import ShardedState
from rollart_flow.trainers.layout import Layout
from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.train_state import InitialState


class MegatronTrainer(DistributedTrainer):
    """One rank of the trainer."""

    backend = "megatron"

    def _shard(
        self, initial: InitialState, settings: RankSettings, ranks: Ranks
    ) -> tuple[ShardedState, Ranks]:
        check_installed()
        from rollart_flow.trainers.backends.megatron.distributed import Distributed
        from rollart_flow.trainers.backends.megatron.groups import make_groups
        from rollart_flow.trainers.backends.megatron.state import MegatronState

        layout = settings.layout if ranks.count > 1 else Layout()
        machine = capabilities(cuda=ranks.device.type == "cuda")
        machine.check(layout)
        config = own_shape(initial.config, "megatron trainer")
        layout.check_shape(
            key_value_heads=config.num_key_value_heads,
            intermediate=config.intermediate_size,
            layers=config.num_hidden_layers,
            expert=None if config.experts is None else config.experts.moe_intermediate_size,
        )
        groups = make_groups(layout, ranks)
        group = groups.with_replicas(ranks)
        make = Distributed if machine.stack else MegatronState
        return make(initial, group, groups, machine), group
