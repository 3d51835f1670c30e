"""The fast tier of a tiered store, whose versions are sent from GPU to GPU and never read.

A version is available only while it is sent: the store cannot list a newest version, and late
joiners, resumed runs, replays and evaluations read the durable store, which has every version. The
invariant: `capabilities` claims nothing that the store cannot provide, so that the tiered store
falls back to the durable store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from rollart_flow.errors import WeightsError
from rollart_flow.weights.base import Manifest, WeightCapabilities, WeightStore
from rollart_flow.weights.broadcast.wire import announce

if TYPE_CHECKING:
    import torch

    from rollart_flow.weights.broadcast.sender import Sender


class BroadcastWeightStore(WeightStore):
    """A store in which publishing holds a version for the engines to request
    (`engines.vllm.receiver`).
    """

    def __init__(self, kind: str, uri: str) -> None:
        """Args: `kind` is in `requirements.SENT`; `uri` is the run's weights folder."""
        self._kind = kind
        self._uri = uri
        self._sender: Sender | None = None

    @property
    def capabilities(self) -> WeightCapabilities:
        """See `WeightStore.capabilities`.

        Publishing runs inside the training step: the copy to send is made on the trainer's own
        device and replaces the previous version, which engines may still request.
        """
        return WeightCapabilities(
            latest=False, late_join=False, overlap_publish=False, device="cuda"
        )

    def uri(self, version: int) -> str:
        """Return the location of the run's weights folder. See `WeightStore.uri`."""
        return self._uri

    def publish(
        self, version: int, tensors: Mapping[str, torch.Tensor], checksum: str | None = None
    ) -> Manifest:
        """Hold the version in place of the previous one. See `WeightStore.publish`.

        Raises:
            WeightsError: this process has no GPU to send from.
        """
        from rollart_flow.resources.nodes import reachable_host
        from rollart_flow.weights.broadcast.sender import Sender

        if self._sender is None:
            self._sender = Sender(self._kind, reachable_host(), device=self.capabilities.device)
            announce(self._uri, self._sender.host, self._sender.port)
        self._sender.offer(version, tensors)
        return self.describe(version, tensors, checksum)

    def read(self, version: int) -> dict[str, torch.Tensor]:
        """Raise WeightsError: versions cannot be read. See `WeightStore.read`."""
        raise self._missing(version)

    def manifest(self, version: int) -> Manifest:
        """Raise WeightsError: no manifest is recorded. See `WeightStore.manifest`."""
        raise self._missing(version)

    def versions(self) -> tuple[int, ...]:
        """Return an empty tuple: no version can be read."""
        return ()

    def retain(self, newest: int, keep: Collection[int] = ()) -> tuple[int, ...]:
        """Do nothing: only one version is held."""
        return ()

    def _missing(self, version: int) -> WeightsError:
        return WeightsError(f"version {version} is sent by {self._kind}, not stored")
