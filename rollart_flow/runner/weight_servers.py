"""Start of the servers, if any, that transfer a run's weights from its trainer to its engines."""

from rollart_flow.pipeline import nodes
from rollart_flow.resources.nodes import reachable_host
from rollart_flow.store.layout import weights_uri
from rollart_flow.weights import kept_weights
from rollart_flow.weights.mooncake.servers import WeightServers, segment_bytes


def start_weight_servers(train: nodes.Train, uri: str) -> tuple[str, WeightServers | None]:
    """Return the name under which workers open the weight store, and its servers.

    The servers are None if the store needs none from this run. The servers are reachable from other
    nodes only if the cluster has other nodes.

    Args:
        train: node that names the store and the number of versions to keep.
        uri: address of the run, which has its first version.

    Raises:
        MissingExtraError: a package is not installed.
        WeightsError: the servers cannot be started.
    """
    if train.weights != "mooncake":
        return train.weights, None
    kept = kept_weights(weights_uri(uri))
    model_bytes = kept.manifest(kept.versions()[0]).size_bytes
    size = segment_bytes(model_bytes, train.keep_versions)
    servers = WeightServers(size, host=reachable_host())
    return f"mooncake://{servers.address}", servers
