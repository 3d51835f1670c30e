"""The fast half of a tiered store whose versions are sent from GPU to GPU, and never read.

What was not sent is not there for anybody: there is no newest version to ask for, and who comes
late, resumes, replays or evaluates reads the lasting store, which has every version. The invariant:
it claims nothing that it cannot give (`capabilities`), so that the tiers put the lasting store in
its place.
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
    """Publishing holds a version for the engines to ask for; `engines.vllm.receiver` asks."""

    def __init__(self, kind: str, uri: str) -> None:
        """Args: `kind` of `requirements.SENT`; `uri` of the run's folder of weights."""
        self._kind = kind
        self._uri = uri
        self._sender: Sender | None = None

    @property
    def capabilities(self) -> WeightCapabilities:
        """See `WeightStore.capabilities`. The copy to send is made on the trainer's own device, and
        takes the place of the version before, which engines may still ask for: in the step."""
        return WeightCapabilities(latest=False, late_join=False, beside=False, device="cuda")

    def uri(self, version: int) -> str:
        """See `WeightStore.uri`: that of the run's folder of weights."""
        return self._uri

    def publish(
        self, version: int, tensors: Mapping[str, torch.Tensor], checksum: str | None = None
    ) -> Manifest:
        """Hold the version in place of the one before. See `WeightStore.publish`.

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
        """Nothing can be read. See `WeightStore.read`."""
        raise self._missing(version)

    def manifest(self, version: int) -> Manifest:
        """Nothing is recorded. See `WeightStore.manifest`."""
        raise self._missing(version)

    def versions(self) -> tuple[int, ...]:
        """None can be read."""
        return ()

    def retain(self, newest: int, keep: Collection[int] = ()) -> tuple[int, ...]:
        """There is nothing to remove: one version is held."""
        return ()

    def _missing(self, version: int) -> WeightsError:
        return WeightsError(f"version {version} is sent by {self._kind}, not stored")
