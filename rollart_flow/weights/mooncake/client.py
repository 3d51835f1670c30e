"""The calls to a Mooncake store that are used here, with what their answers mean.

Keys are put once and never changed: a put on a key that is there changes nothing and says that all
is well, and an overwrite or a forced removal under readers tears what they read. So none of these
is offered. Every key is pinned, since others are evicted silently.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import WeightsError
from rollart_flow.weights.mooncake import package
from rollart_flow.weights.mooncake.recv_buffer import RecvBuffer

if TYPE_CHECKING:
    import torch

_GONE = -704
_FULL = -200
_LEASE_EXPIRED = -707
_NO_ANSWER = -900
_READS = 3
"""Times that a value is read whose lease ends meanwhile."""
_LOCAL_BUFFER_BYTES = 16 << 20
"""For small values; the large ones go through registered buffers."""
_CONNECT_S = 5.0


class SegmentFullError(WeightsError):
    """There is no memory for a value. Nothing was put."""


class MooncakeClient:
    """One connection of this process; one call at a time, from any thread.

    Args:
        address: HOST:PORT of the master.

    Raises:
        MissingExtraError: Mooncake is not installed.
        WeightsError: the master does not answer.
    """

    def __init__(self, address: str) -> None:
        module = package.load()
        host = _own_address(address)
        self._address = address
        self._store: Any = module.MooncakeDistributedStore()
        self._pinned: Any = module.ReplicateConfig()
        self._pinned.with_hard_pin = True
        self.landing = RecvBuffer(self)
        """Memory to read into."""
        self._staging: tuple[torch.Tensor, torch.Tensor] | None = None
        code = self._store.setup(
            {
                "local_hostname": host,
                "metadata_server": "P2PHANDSHAKE",
                "global_segment_size": 0,
                "local_buffer_size": _LOCAL_BUFFER_BYTES,
                "protocol": "tcp",
                "master_server_addr": address,
            }
        )
        self._check(code, "opening the store")

    def answered(self) -> bool:
        """Whether the master answers over this connection; one that was restarted does not."""
        codes: list[int] = self._store.batch_is_exist(["-"])
        return _NO_ANSWER not in codes

    def staging(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Two registered buffers of this size; always the same memory for the same size."""
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
        """Values may be put from these bytes, and read into them, until `forget`.

        Raises:
            WeightsError: they cannot be registered.
        """
        code = self._store.register_buffer(address, size)
        self._check(code, f"registering {size} bytes")

    def forget(self, address: int) -> None:
        """Bytes that were registered are no more."""
        self._store.unregister_buffer(address)

    def put_part(self, key: str, part: torch.Tensor) -> None:
        """Put bytes that lie in registered memory under a new key.

        That they were taken is no proof that they are there: see `check_stored`.

        Raises:
            SegmentFullError: no memory is left.
        """
        code = self._store.put_from(key, part.data_ptr(), part.numel(), self._pinned)
        self._check_put(code, key)

    def get_part(self, key: str, part: torch.Tensor) -> None:
        """Read a value of exactly this size into registered memory.

        Raises:
            WeightsError: it is missing, of another size, or took longer than its lease each time.
        """
        size = part.numel()
        for _ in range(_READS):
            code = self._store.get_into(key, part.data_ptr(), size)
            if code != _LEASE_EXPIRED:
                break
        if code == _LEASE_EXPIRED:
            raise WeightsError(
                f"{key} took longer to read than its lease, {_READS} times; is the network slow?"
            )
        if code != size:
            self._check(min(code, 0), f"reading {key}")
            raise WeightsError(f"{key} has {code} bytes and not {size}")

    def put(self, key: str, value: bytes) -> None:
        """Put a small value under a new key; see `put_part`. Under one that is there, the old
        value stays: whoever may not be the first reads it back."""
        self._check_put(self._store.put(key, value, self._pinned), key)

    def get(self, key: str) -> bytes:
        """A small value; empty where there is none."""
        value: bytes = self._store.get(key)
        return value

    def existing(self, keys: Sequence[str]) -> tuple[bool, ...]:
        """Which of the keys are there."""
        found: list[int] = self._store.batch_is_exist(list(keys))
        self._check(min((code for code in found if code != _GONE), default=0), "looking up keys")
        return tuple(code == 1 for code in found)

    def check_stored(self, key: str, size: int) -> None:
        """Refuse a value that is not there with all its bytes. It is leased from then on.

        Raises:
            WeightsError: it is not.
        """
        stored = self._store.get_size(key)
        if stored != size:
            raise WeightsError(f"{key} was not stored: it has {stored} bytes and not {size}")

    def remove(self, keys: Sequence[str]) -> bool:
        """Remove what nobody has read within its lease; whether nothing of it is left."""
        codes = [self._store.remove(key) for key in keys]
        return set(codes) <= {0, _GONE}

    def close(self) -> None:
        """Let go of the store; what was put stays."""
        self._store.close()

    def _check_put(self, code: int, key: str) -> None:
        if code == _FULL:
            raise SegmentFullError(f"no memory is left in the Mooncake store at {self._address}")
        self._check(code, f"writing {key}")

    def _check(self, code: int, what: str) -> None:
        if code < 0:
            raise WeightsError(
                f"{what} failed in the Mooncake store at {self._address} (code {code}); "
                "is its master up?"
            )


def _own_address(address: str) -> str:
    """Under which this machine talks to the master.

    Where nobody listens, the library would try for a minute: that is refused here at once.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _CONNECT_S) as connection:
            own: str = connection.getsockname()[0]
            return own
    except OSError as error:
        raise WeightsError(
            f"no Mooncake store answers at {address} ({error}); is its master up?"
        ) from error
