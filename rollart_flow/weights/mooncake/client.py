"""A client of a Mooncake store: the calls that this library uses and the meaning of their results.

Keys are put once and never changed: a put on an existing key changes nothing but reports success,
and an overwrite or a forced removal corrupts concurrent reads. The client offers neither. Every key
is pinned, since unpinned keys are evicted silently.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import WeightStoreAwayError
from rollart_flow.weights.memory import ReusedMemory
from rollart_flow.weights.mooncake.package import load
from rollart_flow.weights.mooncake.rdma import check_protocol
from rollart_flow.weights.transport import TCP, TransferSettings

if TYPE_CHECKING:
    import torch

_GONE = -704
_FULL = -200
_LEASE_EXPIRED = -707
_NO_ANSWER = -900
_READS = 3
"""Number of attempts to read a value whose lease ends during the read."""
_LOCAL_BUFFER_BYTES = 16 << 20
"""Size of the buffer for small values; large values use registered buffers."""
_CONNECT_S = 5.0


class SegmentFullError(WeightStoreAwayError):
    """Raised if there is no memory for a value; the value was not stored."""


class MooncakeClient:
    """One connection of this process; supports one call at a time, from any thread.

    Args:
        address: HOST:PORT of the master.
        transfer: protocol and devices of the transfer.

    Raises:
        MissingExtraError: Mooncake is not installed.
        SettingsError: this machine has no device for the protocol.
        WeightStoreAwayError: the master does not answer.
    """

    def __init__(self, address: str, transfer: TransferSettings = TCP) -> None:
        module = load()
        check_protocol(transfer)
        host = _own_address(address)
        self._address = address
        self._store: Any = module.MooncakeDistributedStore()
        self._pinned: Any = module.ReplicateConfig()
        self._pinned.with_hard_pin = True
        self.received = ReusedMemory(self.register, self.forget)
        """Registered memory to read into."""
        self._staging: tuple[torch.Tensor, torch.Tensor] | None = None
        code = self._store.setup(
            {
                "local_hostname": host,
                "metadata_server": "P2PHANDSHAKE",
                "global_segment_size": 0,
                "local_buffer_size": _LOCAL_BUFFER_BYTES,
                "protocol": transfer.protocol,
                "rdma_devices": ",".join(transfer.rdma_devices),
                "master_server_addr": address,
            }
        )
        self._check(code, "opening the store")

    def answered(self) -> bool:
        """Return whether the master answers over this connection; a restarted master does not."""
        codes: list[int] = self._store.batch_is_exist(["-"])
        return _NO_ANSWER not in codes

    def staging(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two registered buffers of this size; the same size gives the same memory."""
        import torch

        if self._staging is None or self._staging[0].numel() != size:
            for buffer in self._staging or ():
                self.forget(buffer.data_ptr())
            first, second = (torch.empty(size, dtype=torch.uint8) for _ in range(2))
            for buffer in (first, second):
                self.register(buffer.data_ptr(), size)
            self._staging = first, second
        return self._staging

    def register(self, address: int, size: int) -> None:
        """Register memory so that values can be put from it and read into it until `forget`.

        Raises:
            WeightStoreAwayError: the memory cannot be registered.
        """
        code = self._store.register_buffer(address, size)
        self._check(code, f"registering {size} bytes")

    def forget(self, address: int) -> None:
        """Unregister memory."""
        self._store.unregister_buffer(address)

    def put_part(self, key: str, part: torch.Tensor) -> None:
        """Put bytes from registered memory under a new key.

        Success does not prove that the bytes are stored; see `check_stored`.

        Raises:
            SegmentFullError: no memory is left.
        """
        code = self._store.put_from(key, part.data_ptr(), part.numel(), self._pinned)
        self._check_put(code, key)

    def get_part(self, key: str, part: torch.Tensor) -> None:
        """Read a value of exactly this size into registered memory.

        Raises:
            WeightStoreAwayError: the value is missing, has another size, or took longer than its
                lease on every attempt.
        """
        size = part.numel()
        for _ in range(_READS):
            code = self._store.get_into(key, part.data_ptr(), size)
            if code != _LEASE_EXPIRED:
                break
        if code == _LEASE_EXPIRED:
            raise WeightStoreAwayError(
                f"{key} took longer to read than its lease, {_READS} times; is the network slow?"
            )
        if code != size:
            self._check(min(code, 0), f"reading {key}")
            raise WeightStoreAwayError(f"{key} has {code} bytes and not {size}")

    def put(self, key: str, value: bytes) -> None:
        """Put a small value under a new key; see `put_part`.

        If the key exists, the old value remains; a caller that may not be the first must read the
        value back.
        """
        self._check_put(self._store.put(key, value, self._pinned), key)

    def get(self, key: str) -> bytes:
        """Return a small value; empty if the key does not exist."""
        value: bytes = self._store.get(key)
        return value

    def existing(self, keys: Sequence[str]) -> tuple[bool, ...]:
        """Return, for each key, whether it exists."""
        found: list[int] = self._store.batch_is_exist(list(keys))
        self._check(min((code for code in found if code != _GONE), default=0), "looking up keys")
        return tuple(code == 1 for code in found)

    def check_stored(self, key: str, size: int) -> None:
        """Verify that a value is stored with all its bytes. The value is leased from then on.

        Raises:
            WeightStoreAwayError: the value is missing or has another size.
        """
        stored = self._store.get_size(key)
        if stored != size:
            raise WeightStoreAwayError(
                f"{key} was not stored: it has {stored} bytes and not {size}"
            )

    def remove(self, keys: Sequence[str]) -> bool:
        """Remove keys that have no active read lease; return whether all of them are gone."""
        codes = [self._store.remove(key) for key in keys]
        return set(codes) <= {0, _GONE}

    def close(self) -> None:
        """Close the connection; stored values remain."""
        self._store.close()

    def _check_put(self, code: int, key: str) -> None:
        if code == _FULL:
            raise SegmentFullError(f"no memory is left in the Mooncake store at {self._address}")
        self._check(code, f"writing {key}")

    def _check(self, code: int, what: str) -> None:
        if code < 0:
            raise WeightStoreAwayError(
                f"{what} failed in the Mooncake store at {self._address} (code {code}); "
                "is its master up?"
            )


def _own_address(address: str) -> str:
    """Return the address under which this machine reaches the master.

    If no process listens there, the library would retry for a minute; this check fails at once.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _CONNECT_S) as connection:
            own: str = connection.getsockname()[0]
            return own
    except OSError as error:
        raise WeightStoreAwayError(
            f"no Mooncake store answers at {address} ({error}); is its master up?"
        ) from error
