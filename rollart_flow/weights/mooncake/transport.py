"""The weight transport `mooncake`: versions in the memory of Mooncake servers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from rollart_flow.registry import Requirement
from rollart_flow.store.files import is_remote
from rollart_flow.weights.base import WeightStore
from rollart_flow.weights.mooncake.package import missing_library, package_folder
from rollart_flow.weights.mooncake.rdma import check_protocol, protocols
from rollart_flow.weights.transport import (
    TCP,
    TransferEnds,
    TransferSettings,
    TransportCapabilities,
    WeightServers,
    WeightTransport,
)


@dataclass(frozen=True, slots=True)
class MooncakeTransport(WeightTransport):
    """Versions in the memory of servers that the run starts, or of existing ones."""

    transfer: TransferSettings = TCP

    capabilities = TransportCapabilities(takes_address=True)
    requirements = (
        Requirement(
            "mooncake",
            (
                "mooncake-transfer-engine-cuda13",
                "mooncake-transfer-engine",
                "mooncake-transfer-engine-non-cuda",
            ),
            "mooncake",
            problem=missing_library,
            summary=lambda gpu: protocols(),
        ),
    )

    def using(self, transfer: TransferSettings) -> MooncakeTransport:
        return MooncakeTransport(transfer)

    def check(self, ends: TransferEnds) -> None:
        package_folder()
        check_protocol(self.transfer)

    def start_servers(self, model_bytes: int, keep_versions: int) -> WeightServers:
        from rollart_flow.resources.nodes import reachable_host
        from rollart_flow.weights.mooncake.servers import MooncakeServers, segment_bytes

        segment = segment_bytes(model_bytes, keep_versions)
        return MooncakeServers(segment, host=reachable_host(), transfer=self.transfer)

    def open(self, address: str, uri: str, on_disk: WeightStore) -> WeightStore:
        if not address:
            return on_disk
        from rollart_flow.weights.mooncake.store import MooncakeWeightStore
        from rollart_flow.weights.tiered import TieredWeightStore

        folder = uri if is_remote(uri) else str(Path(uri).absolute())
        run = f"{Path(folder).parent.name}-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
        return TieredWeightStore(MooncakeWeightStore(address, run, transfer=self.transfer), on_disk)


TRANSPORT = MooncakeTransport()
