"""The weight transport `mooncake`: versions in the memory of Mooncake servers."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rollart_flow.registry import Requirement
from rollart_flow.store.files import is_remote
from rollart_flow.weights.base import WeightStore
from rollart_flow.weights.mooncake.package import missing_library, package_folder
from rollart_flow.weights.transport import (
    TransferEnds,
    TransportCapabilities,
    WeightServers,
    WeightTransport,
)


class MooncakeTransport(WeightTransport):
    """Versions in the memory of servers that the run starts, or of existing ones."""

    capabilities = TransportCapabilities(takes_address=True)
    requirements = (
        Requirement(
            "mooncake",
            ("mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda"),
            "mooncake",
            problem=missing_library,
        ),
    )

    def check(self, ends: TransferEnds) -> None:
        package_folder()

    def start_servers(self, model_bytes: int, keep_versions: int) -> WeightServers:
        from rollart_flow.resources.nodes import reachable_host
        from rollart_flow.weights.mooncake.servers import MooncakeServers, segment_bytes

        return MooncakeServers(segment_bytes(model_bytes, keep_versions), host=reachable_host())

    def open(self, address: str, uri: str, on_disk: WeightStore) -> WeightStore:
        if not address:
            return on_disk
        from rollart_flow.weights.mooncake.store import MooncakeWeightStore
        from rollart_flow.weights.tiered import TieredWeightStore

        folder = uri if is_remote(uri) else str(Path(uri).absolute())
        run = f"{Path(folder).parent.name}-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
        return TieredWeightStore(MooncakeWeightStore(address, run), on_disk)


TRANSPORT = MooncakeTransport()
