"""The weight transports `nccl` and `ipc`: the trainer's GPU sends versions to the engines' GPUs.

A version is available only while it is sent: late joiners, resumed runs, replays and evaluations
read the versions on disk, which are all. The invariants: a run that cannot send its weights is
rejected before it starts, with a one-line error; `capabilities` claims nothing that the store
cannot provide, so that the tiered store falls back to the versions on disk.

Source: vLLM 0.32. Its IPC engine looks up a handle by the GPU's id, so it reaches only engines on
the trainer's device, and it gathers handles from all ranks of a trainer. Errors and messages are
tested without a GPU; the transfer itself was never run on one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.errors import SettingsError, WeightsError
from rollart_flow.weights.base import Manifest, WeightCapabilities, WeightStore
from rollart_flow.weights.broadcast.wire import announce
from rollart_flow.weights.transport import (
    SentWeights,
    TransferEnds,
    TransportCapabilities,
    WeightTransport,
)

if TYPE_CHECKING:
    import torch

    from rollart_flow.weights.broadcast.sender import Sender


class BroadcastWeightStore(WeightStore):
    """A store that holds the published version for the engines (`engines.vllm.receiver`)."""

    def __init__(self, backend: str, uri: str) -> None:
        """Args: `backend` is vLLM's name for the way to send; `uri` is the run's weights folder."""
        self._backend = backend
        self._uri = uri
        self._sender: Sender | None = None

    @property
    def capabilities(self) -> WeightCapabilities:
        """Publishing runs inside the training step: the copy to send is made on the trainer's own
        device and replaces the previous version, which engines may still request."""
        return WeightCapabilities(
            latest=False, late_join=False, overlap_publish=False, device="cuda"
        )

    def uri(self, version: int) -> str:
        return self._uri

    def _publish(
        self, made: Manifest, tensors: Mapping[str, torch.Tensor], *, lasting: bool
    ) -> None:
        """Hold the version in place of the previous one.

        Raises:
            WeightsError: this process has no GPU to send from.
        """
        from rollart_flow.resources.nodes import reachable_host
        from rollart_flow.weights.broadcast.sender import Sender

        if self._sender is None:
            self._sender = Sender(self._backend, reachable_host(), device=self.capabilities.device)
            announce(self._uri, self._sender.host, self._sender.port)
        self._sender.offer(made.version, tensors)

    def read(self, version: int) -> dict[str, torch.Tensor]:
        raise self._missing(version)

    def manifest(self, version: int) -> Manifest:
        raise self._missing(version)

    def versions(self) -> tuple[int, ...]:
        return ()

    def remove(self, versions: Collection[int]) -> tuple[int, ...]:
        return ()

    def _missing(self, version: int) -> WeightsError:
        return WeightsError(f"version {version} is sent by {self._backend}, not stored")


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
        from rollart_flow.weights.tiered import TieredWeightStore

        return TieredWeightStore(BroadcastWeightStore(self.backend, uri), on_disk)


NCCL = BroadcastTransport("nccl", same_device=False)
IPC = BroadcastTransport("ipc", same_device=True)
