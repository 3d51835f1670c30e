"""The protocol between a sender of weights and a receiver: lines of JSON over TCP.

The sender writes its address to the run's weights folder. A receiver connects, states how many
processes hold its model, and asks for versions. The sender answers whether it holds the version; if
so, it calls the four methods of vLLM's weight transfer in turn, and each call is answered. The
invariant: received data is never unpickled; handles of GPU memory are encoded field by field, so
that they can only become handles.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import WeightsError
from rollart_flow.store import files

if TYPE_CHECKING:
    import socket

MOST_BYTES = 64 << 20
"""Maximum size of one line; names and shapes of ten thousand tensors take a hundredth of that."""
_FILE = "sender.json"
_HANDLE = (
    "tensor", "size", "stride", "offset", "storage", "dtype", "device", "handle", "storage_bytes",
    "storage_offset", "requires_grad", "ref_counter", "ref_counter_offset", "event", "event_sync",
)  # fmt: skip
"""Arguments of `torch.multiprocessing.reductions.rebuild_cuda_tensor`, in order."""
_BYTES = ("handle", "ref_counter", "event")
_CLASSES = ("tensor", "storage")
"""Fields that are always torch.Tensor and torch.storage.TypedStorage, and are not transmitted."""


def announce(weights_uri: str, host: str, port: int) -> None:
    """Publish the address of the run's sender, in place of a previous one."""
    text = json.dumps({"host": host, "port": port})
    files.write(files.join(weights_uri, _FILE), text.encode())


def announced(weights_uri: str) -> tuple[str, int] | None:
    """Return (host, port) of the run's sender, or None if no sender has published its address."""
    data = files.read(files.join(weights_uri, _FILE))
    if data is None:
        return None
    said = json.loads(data)
    return said["host"], said["port"]


def line(message: Mapping[str, Any]) -> bytes:
    """Encode a message for transmission."""
    return json.dumps(message).encode() + b"\n"


class Wire:
    """The sender's end of a connection, used by one thread at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rwb")

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises OSError if the connection is closed."""
        self._file.write(line(message))
        self._file.flush()

    def hear(self) -> dict[str, Any] | None:
        """Return the next message, or None if the other side has disconnected."""
        data = self._file.readline(MOST_BYTES)
        if not data.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(data)
        return message


class WireClient:
    """vLLM's `VLLMWeightSyncClient` for one engine at the other end of a connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Have the engine's processes join the transfer; this and the next three are vLLM's."""
        self._call("init", init_info)

    def start_weight_update(self) -> None:
        """Have the engine's processes prepare for an update."""
        self._call("start", {})

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Have the engine's processes receive the weights sent meanwhile."""
        self._call("update", spelled(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Have the engine's processes serve the weights under the requested version."""
        self._call("finish", {})

    def _call(self, name: str, info: Mapping[str, Any]) -> None:
        self._wire.say({"call": name, "info": info})
        answer = self._wire.hear()
        if answer is None:
            raise WeightsError("the receiver has left in the middle of an update")


def spelled(info: dict[str, Any]) -> dict[str, Any]:
    """Convert the update info of vLLM's engines to JSON-compatible values."""
    handles = info.get("ipc_handles")
    if handles is None:
        return info
    said = {gpu: _spell(arguments) for gpu, arguments in handles.items()}
    kept = {key: value for key, value in info.items() if key != "ipc_handles_pickled"}
    return {**kept, "ipc_handles": said}


def read(info: dict[str, Any]) -> dict[str, Any]:
    """Restore update info; the inverse of `spelled`.

    Raises:
        KeyError, ValueError: the value is not encoded update info.
    """
    handles = info.get("ipc_handles")
    if handles is None:
        return info
    return {**info, "ipc_handles": {gpu: _read(said) for gpu, said in handles.items()}}


def _spell(arguments: tuple[Any, ...]) -> dict[str, Any]:
    named = dict(zip(_HANDLE, arguments, strict=True))
    said = {key: value for key, value in named.items() if key not in _CLASSES}
    said["size"], said["stride"] = list(named["size"]), list(named["stride"])
    said["dtype"] = str(named["dtype"]).removeprefix("torch.")
    for name in _BYTES:
        said[name] = base64.b64encode(named[name]).decode()
    return said


def _read(said: Mapping[str, Any]) -> tuple[Any, ...]:
    import torch

    named = dict(said)
    named["tensor"], named["storage"] = torch.Tensor, torch.storage.TypedStorage
    named["size"], named["stride"] = tuple(said["size"]), tuple(said["stride"])
    dtype = getattr(torch, said["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{said['dtype']!r} is no dtype")
    named["dtype"] = dtype
    for name in _BYTES:
        named[name] = base64.b64decode(said[name], validate=True)
    return tuple(named[name] for name in _HANDLE)
