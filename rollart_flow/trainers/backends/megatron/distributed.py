"""Training state in Megatron-core's own training stack, on GPUs.

`DistributedDataParallel` has gradients in its buffers and sums them over data-parallel ranks during
the backward pass; the distributed optimizer of each of these ranks updates its shard of every
buffer, and all ranks gather the weights. The invariants: losses are divided by the whole batch, so
that gradients are summed and never averaged; exported tensors have the layout of `MegatronState`,
so that checkpoints are independent of the stack that wrote them.

Source: Megatron-core 0.16.1, `distributed` and `optimizer`; run on gloo ranks with CPU tensors,
which tests present to Megatron as those of a GPU, and never on a GPU.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from rollart_flow.trainers.backends.megatron.core import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    OptimizerConfig,
    ParamGroupOverride,
    ParamKey,
    clip_grad_by_total_norm_fp32,
    finalize_model_grads,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from rollart_flow.trainers.backends.megatron.pipeline import Scheduled
from rollart_flow.trainers.backends.megatron.state import MegatronState
from rollart_flow.trainers.optimizer import AdamW
from rollart_flow.trainers.step.critic import VALUE_HEAD
from rollart_flow.trainers.step.running import Runner

_MOMENTS = ("exp_avg", "exp_avg_sq")


def data_parallel_config(stages: int) -> Any:
    """Return Megatron's `DistributedDataParallelConfig` for a number of pipeline stages.

    Exchanges during the backward pass wait for the gradient of every parameter, including those of
    the critic, which every rank has only with one stage.
    """
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=True,
        overlap_grad_reduce=stages == 1,
        average_in_collective=False,
    )


def optimizer_config(settings: AdamW) -> Any:
    """Return Megatron's `OptimizerConfig`; rates and clipping are applied at each step."""
    return OptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        min_lr=settings.final_lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_eps=settings.eps,
        decoupled_weight_decay=True,
        clip_grad=settings.clip_norm,
        params_dtype=torch.float32,
        use_distributed_optimizer=True,
    )


def overrides(settings: AdamW, critic_lr_scale: float) -> dict[Any, Any]:
    """Return Megatron's overrides: vectors and critic do not decay; the critic has its own rate."""
    critic = ParamGroupOverride(wd_mult=0.0, max_lr=settings.lr * critic_lr_scale)
    return {
        **get_standard_config_overrides(optimizer_config(settings)),
        ParamKey(name=f"*{VALUE_HEAD}.*"): critic,
    }


class Distributed(MegatronState):
    """Model, head and optimizer of all ranks, of which this process holds a part."""

    def clip(self) -> float:
        """Sum the gradient over ranks and clip it."""
        groups = self._groups.collection(with_embedding=True)
        finalize_model_grads([self._chunk], None, pg_collection=groups)
        if self._groups.layout.pipeline > 1:
            for parameter in self._head.values():
                gradient: torch.Tensor = parameter.main_grad  # type: ignore[attr-defined]
                dist.all_reduce(gradient, group=self._groups.pipeline)
        self._stack.prepare_grads()
        norm = float(self._stack.get_grad_norm())
        largest = self._settings.clip_norm or math.inf
        clip_grad_by_total_norm_fp32(self._stack.get_parameters(), largest, norm)
        return norm

    def update(self) -> None:
        """Update this rank's shard and gather the other shards."""
        self._stack.step_with_ready_grads()
        self._updates += 1

    def forget_gradient(self) -> None:
        self._chunk.zero_grad_buffer()

    def remember(self) -> Callable[[], None]:
        put_all_back, updates = super().remember(), self._updates

        def put_back() -> None:
            put_all_back()
            self._count(updates)

        return put_back

    def _optimizer(self, critic_lr_scale: float) -> torch.optim.AdamW:
        """Wrap model and head, and make the optimizer of this rank's shard of both."""
        self._updates = 0
        self._mark()
        if self.critic is not None:
            self._mcore.register_module(VALUE_HEAD, self.critic.value)
        config = self._mcore.module.config
        self._chunk = DistributedDataParallel(
            config=config,
            ddp_config=data_parallel_config(self._groups.layout.pipeline),
            module=self._mcore,
            pg_collection=self._groups.collection(),
        )
        if self._chunk.ddp_config.overlap_grad_reduce:
            config.no_sync_func = self._chunk.no_sync
        self._stack = get_megatron_optimizer(
            optimizer_config(self._settings),
            [self._chunk],
            config_overrides=overrides(self._settings, critic_lr_scale),
            use_gloo_process_groups=False,
            pg_collection=self._groups.collection(),
        )
        (self._sharded,) = self._stack.chained_optimizers
        for group in self._stack.param_groups:
            group["weight_decay"] = self._settings.weight_decay * group["wd_mult"]
            group["lr_scale"] = group["max_lr"] / self._settings.lr
        inner: torch.optim.AdamW = self._sharded.optimizer
        return inner

    def _mark(self) -> None:
        """Set the attributes of parameters that Megatron sets when it initializes weights."""
        for own, parameter in self._trained.items():
            parameter.tensor_model_parallel = self._entries[own].dim is not None  # type: ignore[attr-defined]
        if self._groups.layout.pipeline > 1:
            for parameter in self._head.values():
                parameter.shared_embedding = True  # type: ignore[attr-defined]  # a share like the others'
                parameter.shared = not self._groups.last  # type: ignore[attr-defined]  # counted once

    def _runner(self) -> Runner:
        return Scheduled(self._chunk, self._groups, self._ranks.device)

    def _moments(self, parameter: torch.nn.Parameter) -> Mapping[str, torch.Tensor]:
        """Gather the moments from the data-parallel ranks, each of which has those of its shard.

        Megatron does the same for its own checkpoints of the kind "fully_reshardable".
        """
        if not self._updates:
            return {}
        found = {"step": torch.tensor(float(self._updates))}
        for kind in _MOMENTS:
            flat = torch.zeros(parameter.numel(), device=parameter.device)
            shard = self._shard(parameter)
            if shard is not None:
                main, own = shard
                flat[own] = self.optimizer.state[main][kind]
            dist.all_reduce(flat, group=self._groups.data)
            found[kind] = flat.view_as(parameter)
        return found

    def _take_moments(
        self, parameter: torch.nn.Parameter, moments: Mapping[str, torch.Tensor]
    ) -> None:
        self._count(int(moments["step"]) if moments else 0)
        shard = self._shard(parameter)
        if shard is None:
            return
        main, own = shard
        state = {kind: moments[kind].reshape(-1)[own].clone() for kind in _MOMENTS if moments}
        if moments and self._counts_each:
            state["step"] = torch.tensor(float(self._updates))
        self.optimizer.state[main] = state

    def _shard(self, parameter: torch.nn.Parameter) -> tuple[torch.Tensor, slice] | None:
        """Main tensor of this rank's shard of a parameter and its slice; None without a shard."""
        at = self._sharded.model_param_group_index_map.get(parameter)
        if at is None:
            return None
        group, index = at
        span = self._sharded._get_model_param_range_map(parameter)["param"]
        return self.optimizer.param_groups[group]["params"][index], slice(span.start, span.end)

    @property
    def _counts_each(self) -> bool:
        """Whether the optimizer counts updates for each tensor; Transformer Engine's does for each
        group of them."""
        return isinstance(self.optimizer, torch.optim.AdamW)

    def _count(self, updates: int) -> None:
        self._updates = updates
        if not self._counts_each:
            for group in self.optimizer.param_groups:
                group["step"] = updates
