"""What carries a run's weights from its trainer to its engines, with the servers that it takes."""

from rollart_flow.pipeline import nodes
from rollart_flow.resources.nodes import reachable_host
from rollart_flow.store.layout import weights_uri
from rollart_flow.weights import kept_weights
from rollart_flow.weights.mooncake.servers import WeightServers, segment_bytes


def start_weight_servers(train: nodes.Train, uri: str) -> tuple[str, WeightServers | None]:
    """The name under which the workers open the weight store, and its servers; None where it takes
    none of this run. They are reached from other nodes only where there are any.

    Args:
        train: names the store, and how many versions it keeps.
        uri: of the run, which has its first version.

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
