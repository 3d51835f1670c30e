"""The trainer's side of weight transfer: it holds the newest version on its GPU and sends it on
request.

Each engine worker has its own connection and communication group, so the loss of one worker does
not affect others. vLLM's trainer engines send the data: NCCL broadcasts to the processes of that
worker, and IPC shares memory of the GPU that both use. The invariant: a transfer sends one version,
copied when it was published; training continues meanwhile.

Source: vLLM 0.32, `vllm.distributed.weight_transfer`. Tested without a GPU, with a substitute for
NCCL's communicator; never run on a GPU. A second copy of the weights is held on the trainer's GPU.
The received tensors have the names, dtypes and shapes that were sent; their checksum is not
verified on the GPU.
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
"""Maximum wait for another transfer to finish; the receiver then reads the durable store.

A transfer that takes longer is considered dead and is no longer waited for.
"""
_BUFFER_BYTES = 256 << 20
"""Minimum size of a packed buffer; with IPC the largest tensor must fit into one buffer."""


class Held:
    """One version as a vLLM `WeightSource`: names, dtypes, shapes, and tensors in that order."""

    def __init__(self, version: int, tensors: Mapping[str, torch.Tensor], device: str) -> None:
        """Copy the tensors to a device."""
        self.version = version
        self._tensors = {
            name: tensors[name].detach().to(device, copy=True).contiguous()
            for name in sorted(tensors)
        }

    @property
    def largest_bytes(self) -> int:
        """Size of the largest tensor of the version."""
        return max(tensor.nbytes for tensor in self._tensors.values())

    def metadata(self) -> list[Any]:
        """Return the metadata of the tensors; see `WeightSource.metadata`."""
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in self]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Iterate over all names and tensors from the start."""
        yield from self._tensors.items()


def trainer_info(backend: str, host: str, receivers: int, held: Held) -> Any:
    """Return the settings of vLLM's trainer engine: its backend and where it meets the receivers.

    Args:
        backend: vLLM's name for the way to send.
        host: address of this machine at which receivers reach it.
        receivers: number of processes that hold one engine's model; the sender is rank 0, before
        them.
        held: the version to send.
    """
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    buffer = max(_BUFFER_BYTES, held.largest_bytes)
    if backend == "ipc":
        return IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=buffer)
    return NCCLTrainerInitInfo(
        rank=0,
        master_address=host,
        master_port=_free_port(host),
        world_size=1 + receivers,
        packed_buffer_size_bytes=buffer,
    )


class Sender:
    """A server that sends each receiver the version it asks for, if that version is held."""

    def __init__(self, backend: str, host: str, *, device: str) -> None:
        """Args: `backend` is vLLM's name for the way to send; `host` is the listening address;
        versions are sent from `device`.

        Raises:
            WeightsError: this process has no such device.
        """
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            raise WeightsError(
                f"train.weights={backend!r}: the trainer has no GPU to send from; give it one, or "
                "take 'local' or 'mooncake'"
            )
        self.host = host
        self._backend = backend
        self._device = device
        self._held: Held | None = None
        self._sending = threading.Lock()
        sender = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                sender._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True  # a thread that sends to a dead process waits in NCCL forever
            block_on_close = False

        self._server = Server((host, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="weights sender")
        self._thread.daemon = True  # it ends with the trainer's process
        self._thread.start()

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self._server.server_address[1])

    def offer(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Hold a version in place of the previous one, which lives on in transfers in progress."""
        self._held = Held(version, tensors, self._device)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one receiver until it disconnects or an error occurs."""
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
        except Exception as error:  # noqa: BLE001  an error of vLLM ends this connection alone
            line = " ".join(str(error).split()) or type(error).__name__
            with suppress(OSError):
                wire.say({"failed": line})
        finally:
            if endpoint is not None:
                endpoint.shutdown()

    @contextmanager
    def _turn(self, version: int) -> Iterator[Held | None]:
        """Yield the version, held while the context lasts.

        Yield None if the version is not the newest, or if another receiver takes too long.
        """
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

        info = trainer_info(self._backend, self.host, receivers, held)
        return WeightTransferTrainerFactory.trainer_init(info, client=client, source=held)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
