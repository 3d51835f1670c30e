"""The base class of weight transports: how versions travel from the trainer to the engines.

A transport opens a `WeightStore` for trainers and engines, and may start servers for a run or have
the trainer's GPU send versions. To add one: a module with a `WeightTransport`, its name in
`weights.registry`, and an extra in `pyproject.toml` if it needs a package; nothing else names it.
A package adds one through an entry point of the group `rollart_flow.weights`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal
from urllib.parse import parse_qsl, urlencode

from rollart_flow.errors import SettingsError
from rollart_flow.fields import check_fields
from rollart_flow.registry import Requirement
from rollart_flow.weights.base import WeightStore


@dataclass(frozen=True, kw_only=True)
class TransferSettings:
    """Settings of the transfer to and from the servers of a weight store.

    Raises:
        SettingsError: a setting is wrong, or devices are given for TCP.
    """

    protocol: Literal["tcp", "rdma"] = "tcp"
    """Protocol of a Mooncake store. "rdma" needs an active RDMA device on each node that trains,
    generates or serves weights, as `rollart doctor` reports it (never run on one)."""
    rdma_devices: tuple[str, ...] = ()
    """RDMA devices to use, such as "mlx5_0"; empty: those that Mooncake selects."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rdma_devices and self.protocol != "rdma":
            raise SettingsError(
                f"rdma_devices={self.rdma_devices!r} are not used by protocol={self.protocol!r}; "
                "take protocol='rdma'"
            )

    def named(self, weights: str) -> str:
        """Return the name of a weight store with these settings, for the processes of a run."""
        if self == TCP:
            return weights
        devices = ",".join(self.rdma_devices)
        return f"{weights}?{urlencode({'protocol': self.protocol, 'rdma_devices': devices})}"

    @classmethod
    def of(cls, weights: str) -> tuple[str, TransferSettings]:
        """Return the name of a weight store without its settings, and the settings."""
        name, _, text = weights.partition("?")
        given: dict[str, Any] = dict(parse_qsl(text))
        if "rdma_devices" in given:
            given["rdma_devices"] = tuple(given["rdma_devices"].split(","))
        try:
            return name, cls(**given)
        except TypeError:
            raise SettingsError(f"weights={weights!r}: expected {name}") from None


TCP = TransferSettings()
"""The default settings."""


@dataclass(frozen=True, slots=True)
class TransportCapabilities:
    """The capabilities of a weight transport."""

    takes_address: bool = False
    """Whether `NAME://HOST:PORT` uses servers that exist already."""
    sends: bool = False
    """Whether the trainer's GPU sends versions to the GPUs of the engines that `sent_to` accepts;
    all other readers read the versions on disk."""


@dataclass(frozen=True, slots=True)
class TransferEnds:
    """The trainer and the engines of a pipeline, between which weights travel."""

    engine: str
    """Name of the inference engine."""
    engine_receives: bool
    """Whether the engine's GPU receives weights that a trainer's GPU sends."""
    classes: Collection[str]
    """Resource classes to which engines are bound; empty if they are determined at run time."""
    sliding_workers: int
    """Number of engines on the trainer's own devices."""
    ranks: int
    """Number of ranks of the trainer."""


@dataclass(frozen=True, slots=True)
class SentWeights:
    """The means by which the trainer sends weights to an engine's GPU."""

    backend: str
    """The backend of vLLM's weight transfer that sends and receives."""
    weights_uri: str
    """The run's weights folder, in which the sender publishes its address."""


class WeightServers(ABC):
    """Servers that a transport started for one run."""

    name: ClassVar[str]
    """Subject of the event that records their end."""
    pids: tuple[int, ...]
    """Process ids of the servers that run."""

    @property
    @abstractmethod
    def weights(self) -> str:
        """The name under which workers open the store that is served."""

    @property
    @abstractmethod
    def lost(self) -> bool:
        """Whether versions published before may be lost."""

    @abstractmethod
    def close(self) -> None:
        """Stop the servers and wait for their end. May be called twice."""


class WeightTransport:
    """A weight transport that `train.weights` can name.

    This class itself is the transport that needs nothing: readers read the versions on disk.
    """

    capabilities: ClassVar[TransportCapabilities] = TransportCapabilities()
    requirements: ClassVar[tuple[Requirement, ...]] = ()

    def using(self, transfer: TransferSettings) -> WeightTransport:
        """Return this transport with settings of the transfer.

        Raises:
            SettingsError: it has none, and they are not the default ones.
        """
        if transfer != TCP:
            raise SettingsError(
                f"protocol={transfer.protocol!r} is a setting of weights='mooncake' alone"
            )
        return self

    def check(self, ends: TransferEnds) -> None:
        """Reject, when a pipeline is built, a transport that cannot be used.

        Raises:
            SettingsError: the transport cannot be used in this pipeline.
            MissingExtraError: a package that it needs is not installed.
        """

    def check_placed(self, trainers: Collection[str], engines: Collection[str]) -> None:
        """Reject a placement before the processes of a run start.

        Args:
            trainers: resource classes that the trainer's ranks were granted.
            engines: resource classes that the engines were granted.

        Raises:
            WeightsError: no trainer can send, or no engine can receive.
        """

    def start_servers(self, model_bytes: int, keep_versions: int) -> WeightServers | None:
        """Start the servers of a run; None if the transport needs none.

        The servers are reachable from other nodes only if the cluster has other nodes.

        Args:
            model_bytes: size of one version.
            keep_versions: number of versions to keep.

        Raises:
            MissingExtraError: a package is not installed.
            WeightsError: the servers cannot be started.
        """
        return None

    def sent_to(self, uri: str, granted: str, *, shares: bool) -> SentWeights | None:
        """Return how the trainer sends versions to a worker, or None if the worker reads them.

        Args:
            uri: the run's weights folder.
            granted: resource class that the worker was granted.
            shares: whether the worker runs on the trainer's own devices.
        """
        return None

    def open(self, address: str, uri: str, on_disk: WeightStore) -> WeightStore:
        """Open the store that trainers publish to and engines read from.

        Args:
            address: address of existing servers; empty if the name has none.
            uri: the run's weights folder.
            on_disk: store of the versions in that folder.
        """
        return on_disk


ON_DISK = WeightTransport()
