"""The trainer's end of sending: it holds the newest version on its GPU and sends it when asked.

Each engine worker has a connection and a group of its own, so that the loss of one takes no other
along. vLLM's own trainer engines do the sending: NCCL broadcasts to the processes of that worker,
IPC hands over memory of the GPU that both are on. The invariant: what is sent is one version,
copied when it was published; training goes on beside it.

Source: vLLM 0.32, `vllm.distributed.weight_transfer`. Tried without a GPU, with a communicator that
stands for NCCL's; never run on one. A second copy of the weights is held on the trainer's GPU. What
arrives has the names, dtypes and shapes that were sent; no checksum is taken of it on the GPU.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import WeightsError
from rollart_flow.weights.broadcast.wire import Wire, WireClient

if TYPE_CHECKING:
    import torch

PATIENCE_S = 60.0
"""Longest wait for others who are being sent to; a receiver reads the lasting store after that. Who
takes longer has died in the middle, and is waited for no more."""
_BUFFER_BYTES = 256 << 20
"""Of a packed piece, at least; the largest tensor must fit into one where it goes by IPC."""


class Held:
    """One version as vLLM's `WeightSource`: names, dtypes, shapes, and tensors in that order."""

    def __init__(self, version: int, tensors: Mapping[str, torch.Tensor], device: str) -> None:
        """Copy the tensors to a device."""
        self.version = version
        self._tensors = {
            name: tensors[name].detach().to(device, copy=True).contiguous()
            for name in sorted(tensors)
        }

    @property
    def largest_bytes(self) -> int:
        """Size of its largest tensor."""
        return max(tensor.nbytes for tensor in self._tensors.values())

    def metadata(self) -> list[Any]:
        """See `WeightSource.metadata`."""
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in self]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every name with its tensor, from the start."""
        yield from self._tensors.items()


def trainer_info(kind: str, host: str, receivers: int, held: Held) -> Any:
    """What vLLM's trainer engine is told: its kind, and where it meets the receivers.

    Args:
        kind: of `SENT`.
        host: of this machine, as the receivers reach it.
        receivers: processes that hold one engine's model; the sender is rank 0, before them.
        held: what will be sent.
    """
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    buffer = max(_BUFFER_BYTES, held.largest_bytes)
    if kind == "ipc":
        return IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=buffer)
    return NCCLTrainerInitInfo(
        rank=0,
        master_address=host,
        master_port=_free_port(host),
        world_size=1 + receivers,
        packed_buffer_size_bytes=buffer,
    )


class Sender:
    """Listens for receivers, and sends each the version that it asks for if that is held."""

    def __init__(self, kind: str, host: str, *, device: str) -> None:
        """Args: `kind` of `SENT`; `host` to listen at; `device` that versions are sent from.

        Raises:
            WeightsError: this process has no such device.
        """
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            raise WeightsError(
                f"train.weights={kind!r}: the trainer has no GPU to send from; give it one, or "
                "take 'local' or 'mooncake'"
            )
        self.host = host
        self._kind = kind
        self._device = device
        self._held: Held | None = None
        self._sending = threading.Lock()
        sender = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                sender._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True  # one that sends to a process that died waits in NCCL for good
            block_on_close = False

        self._server = Server((host, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="weights sender")
        self._thread.daemon = True  # it ends with the trainer's process
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def offer(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Hold a version in place of the one before, which stays for those it is being sent to."""
        self._held = Held(version, tensors, self._device)

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one receiver until it leaves, or something fails on the way."""
        wire, endpoint = Wire(connection), None
        try:
            if (hello := wire.hear()) is None:
                return
            while (asked := wire.hear()) is not None:
                with self._turn(int(asked["version"])) as held:
                    wire.say({"held": held is not None})
                    if held is None:
                        continue
                    if endpoint is None:
                        endpoint = self._open(int(hello["receivers"]), WireClient(wire), held)
                    endpoint.source = held
                    endpoint.send_weights()
                wire.say({"sent": True})
        except Exception as error:  # noqa: BLE001  whatever vLLM raises ends this connection alone
            line = " ".join(str(error).split()) or type(error).__name__
            with suppress(OSError):
                wire.say({"failed": line})
        finally:
            if endpoint is not None:
                endpoint.shutdown()

    @contextmanager
    def _turn(self, version: int) -> Iterator[Held | None]:
        """The version, held for as long as the context lasts; None if it is not the newest, or
        another receiver takes too long."""
        sending = self._sending
        if not sending.acquire(timeout=PATIENCE_S):
            if self._sending is sending:
                self._sending = threading.Lock()
            yield None
            return
        try:
            held = self._held
            yield held if held is not None and held.version == version else None
        finally:
            sending.release()

    def _open(self, receivers: int, client: WireClient, held: Held) -> Any:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        info = trainer_info(self._kind, self.host, receivers, held)
        return WeightTransferTrainerFactory.trainer_init(info, client=client, source=held)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
