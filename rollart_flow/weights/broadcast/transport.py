"""The weight transports `nccl` and `ipc`: the trainer's GPU sends versions to the engines' GPUs.

The invariant: a run that cannot send its weights is rejected before it starts, with a one-line
error.

Source: vLLM 0.32. Its IPC engine looks up a handle by the GPU's id, so it reaches only engines on
the trainer's device, and it gathers handles from all ranks of a trainer. Errors and messages are
tested without a GPU; the transfer itself was never run on one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rollart_flow.errors import SettingsError, WeightsError
from rollart_flow.weights.base import WeightStore
from rollart_flow.weights.transport import (
    SentWeights,
    TransferEnds,
    TransportCapabilities,
    WeightTransport,
)

_CPU = "CPU"
_OTHERS = "take 'local' or 'mooncake'"


@dataclass(frozen=True, slots=True)
class BroadcastTransport(WeightTransport):
    """Versions that the trainer sends, in addition to those on disk."""

    capabilities = TransportCapabilities(sends=True)

    backend: str
    """vLLM's name for the way to send; also the name of the transport."""
    same_device: bool
    """Whether one rank of the trainer reaches engines on its own device only."""

    def check(self, ends: TransferEnds) -> None:
        said = f"train.weights={self.backend!r}"
        if not ends.engine_receives:
            raise SettingsError(
                f"{said}: only vLLM receives weights on its GPU, not the {ends.engine} engine; "
                f"take policy.engine=vllm, or {_OTHERS}"
            )
        if self.same_device and not ends.sliding_workers:
            raise SettingsError(
                f"{said}: it reaches engines on the trainer's own GPU only, and rollout has none; "
                f"set sliding_workers, or {_OTHERS}"
            )
        if self.same_device and ends.ranks > 1:
            raise SettingsError(
                f"{said}: one rank sends, on one GPU, but train.ranks={ends.ranks}; take 1, or "
                f"weights={NCCL.backend!r}"
            )
        if not self.same_device and ends.classes and not set(ends.classes) - {_CPU}:
            raise SettingsError(
                f"{said}: it moves weights between GPUs, and every engine is bound to CPU; name "
                f"another class in rollout.hw_affinity, or {_OTHERS}"
            )

    def check_placed(self, trainers: Collection[str], engines: Collection[str]) -> None:
        for who, granted in (("the trainer", trainers), ("every engine", engines)):
            if not set(granted) - {_CPU}:
                raise WeightsError(
                    f"train.weights={self.backend!r} moves weights between GPUs, and this Ray "
                    f"cluster placed {who} on CPU; {_OTHERS}"
                )

    def sent_to(self, uri: str, granted: str, *, shares: bool) -> SentWeights | None:
        reached = granted != _CPU and (shares or not self.same_device)
        return SentWeights(self.backend, uri) if reached else None

    def open(self, address: str, uri: str, on_disk: WeightStore) -> WeightStore:
        from rollart_flow.weights.broadcast.store import BroadcastWeightStore
        from rollart_flow.weights.tiered import TieredWeightStore

        return TieredWeightStore(BroadcastWeightStore(self.backend, uri), on_disk)


NCCL = BroadcastTransport("nccl", same_device=False)
IPC = BroadcastTransport("ipc", same_device=True)
