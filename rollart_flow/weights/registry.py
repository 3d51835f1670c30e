"""Registry of weight transports by the name in `train.weights`.

    local                  the versions on disk, in the run's folder
    mooncake               the memory of servers that the run starts (ROLLART section 6.2)
    mooncake://HOST:PORT   the memory of existing servers
    nccl, ipc              from the trainer's GPU to vLLM's, in addition to the versions on disk
                           (never run on a GPU)

A transport is imported when a pipeline names it, and its package when a store is opened. See
`weights.transport` for how to add one.
"""

import re

from rollart_flow.errors import SettingsError
from rollart_flow.registry import Registry
from rollart_flow.weights.base import WeightStore
from rollart_flow.weights.transport import TransferSettings, WeightServers, WeightTransport

WEIGHT_TRANSPORTS: Registry[WeightTransport] = Registry(
    "weights",
    {
        "local": "rollart_flow.weights.transport:ON_DISK",
        "mooncake": "rollart_flow.weights.mooncake.transport:TRANSPORT",
        "nccl": "rollart_flow.weights.broadcast.transport:NCCL",
        "ipc": "rollart_flow.weights.broadcast.transport:IPC",
    },
    setting="train.weights",
    kind=WeightTransport,
)
_ADDRESS = re.compile(r"[^/:\s]+:\d+")


def transport_of(weights: str) -> WeightTransport:
    """Return a transport, named possibly with an address.

    Raises:
        SettingsError: no transport has that name.
    """
    return _transport(weights)[0]


def start_weight_servers(weights: str, uri: str, keep_versions: int) -> WeightServers | None:
    """Start the servers of a run's transport; None if it needs none or its name has an address.

    Args:
        weights: name of the transport, possibly with an address.
        uri: the run's weights folder, which has a version.
        keep_versions: number of versions to keep.

    Raises:
        MissingExtraError: a package is not installed.
        WeightsError: the servers cannot be started.
    """
    transport, address = _transport(weights)
    if address:
        return None
    stored = stored_weights(uri)
    return transport.start_servers(stored.manifest(stored.versions()[0]).size_bytes, keep_versions)


def open_weights(weights: str, uri: str) -> WeightStore:
    """Open the weight store of a run for a trainer or an engine.

    Args:
        weights: name of the transport, possibly with an address; without the address of its
            servers, a transport opens only the versions on disk.
        uri: the run's weights folder.

    Raises:
        SettingsError: no transport has that name.
    """
    transport, address = _transport(weights)
    return transport.open(address, uri, stored_weights(uri))


def stored_weights(uri: str) -> WeightStore:
    """Open the versions of a run that are on disk, whatever transports the others."""
    from rollart_flow.weights.local import LocalWeightStore

    return LocalWeightStore(uri)


def _transport(weights: str) -> tuple[WeightTransport, str]:
    """Return the transport and the address of `NAME` or `NAME://ADDRESS`, with any settings."""
    weights, transfer = TransferSettings.of(weights)
    name, separator, address = weights.partition("://")
    transport = WEIGHT_TRANSPORTS.load(name).using(transfer)
    takes = transport.capabilities.takes_address
    if separator and not (takes and _ADDRESS.fullmatch(address)):
        known = f"{name} or {name}://HOST:PORT" if takes else name
        raise SettingsError(f"{WEIGHT_TRANSPORTS.setting}={weights!r}: expected {known}")
    return transport, address
