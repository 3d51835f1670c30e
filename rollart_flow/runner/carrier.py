"""What carries a run's weights from its trainer to its engines, with the servers that it takes."""

import ray

from rollart_flow.pipeline import nodes
from rollart_flow.store.layout import weights_uri
from rollart_flow.weights import kept_weights
from rollart_flow.weights.mooncake.servers import WeightServers, segment_bytes


def start_carrier(train: nodes.Train, uri: str) -> tuple[str, WeightServers | None]:
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
    alone = len([node for node in ray.nodes() if node["Alive"]]) == 1
    host = "127.0.0.1" if alone else ray.util.get_node_ip_address()
    servers = WeightServers(segment_bytes(model_bytes, train.keep_versions), host=host)
    return f"mooncake://{servers.address}", servers
