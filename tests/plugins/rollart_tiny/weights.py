"""A weight transport with a server: a folder beside the run's, at an address."""

from rollart_flow.weights.base import WeightStore
from rollart_flow.weights.local import LocalWeightStore
from rollart_flow.weights.tiered import TieredWeightStore
from rollart_flow.weights.transport import TransportCapabilities, WeightServers, WeightTransport
from rollart_tiny import used


class TinyServers(WeightServers):
    """Servers without a process, which never fail."""

    name = "tiny"
    pids = ()

    @property
    def weights(self) -> str:
        return "tiny://127.0.0.1:1"

    @property
    def lost(self) -> bool:
        return False

    def close(self) -> None:
        used("weight servers closed")


class TinyTransport(WeightTransport):
    """Versions in a folder of their own; those that must last are on disk too."""

    capabilities = TransportCapabilities(takes_address=True)

    def start_servers(self, model_bytes: int, keep_versions: int) -> WeightServers:
        used("weight servers started")
        return TinyServers()

    def open(self, address: str, uri: str, on_disk: WeightStore) -> WeightStore:
        if not address:
            return on_disk
        used("weights")
        return TieredWeightStore(LocalWeightStore(f"{uri}-tiny"), on_disk)


TRANSPORT = TinyTransport()
