"""The two ways of new weights to vLLM: sent by the trainer's GPU, or in an unlinked file.

vLLM's processes receive what the trainer sends (`weights.broadcast`); this module forwards the
trainer's calls and reports when they are done. The invariant: if the trainer does not hold the
version when asked, or does not answer, nothing changes and the caller reads the durable store. A
transfer that has begun ends with the whole version or with an error, after which the engine samples
no token. Once a file is written, its space is freed however this process ends.

Source: vLLM 0.32. Tested without a GPU, with a substitute for NCCL's communicator.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from rollart_flow.errors import EngineError, WeightsError
from rollart_flow.weights.broadcast.wire import MOST_BYTES, announced, line
from rollart_flow.weights.buckets import save_tensors

if TYPE_CHECKING:
    import torch


class Receiver:
    """A client that asks the run's trainer for versions; for one caller at a time."""

    def __init__(self, weights_uri: str, receivers: int) -> None:
        """Args: `weights_uri` is the run's weights folder, and `receivers` the number of vLLM
        processes that hold the model."""
        self._weights_uri = weights_uri
        self._receivers = receivers
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def offers(self, version: int) -> bool:
        """Return whether the trainer holds a version and will send it next."""
        try:
            await self._connect()
            await self._say({"version": version})
            return bool((await self._hear())["held"])
        except (OSError, ValueError, KeyError, EngineError):
            self.close()  # the listener at that address is not a sender of this run
            return False

    async def take(self, llm: Any, version: int) -> None:
        """Have vLLM, which is paused, receive the offered version; EngineError if that fails."""
        try:
            message = await self._hear()
            while "call" in message:
                message = await self._obey(llm, message, version)
        except BaseException:
            self.close()  # the trainer waits for an answer; closing tells it that none will come
            raise
        if "sent" not in message:
            self.close()
            said = message.get("failed", "nothing")
            raise EngineError(f"weights of version {version} were not sent: {said}")

    def close(self) -> None:
        """Disconnect; the next request connects again."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _obey(self, llm: Any, message: dict[str, Any], version: int) -> dict[str, Any]:
        """Execute a call of the trainer, answer it and return the trainer's next message.

        The trainer sends nothing before it has the answer; an earlier message means that it has
        stopped.
        """
        call = asyncio.create_task(_called(llm, message["call"], message["info"], version))
        heard = asyncio.create_task(self._hear())
        try:
            await asyncio.wait((call, heard), return_when=asyncio.FIRST_COMPLETED)
            if heard.done():
                heard.result()
                raise EngineError("the trainer does not wait for its receivers")
            call.result()
            await self._say({"done": True})
            return await heard
        finally:
            for task in (call, heard):
                task.cancel()
            await asyncio.wait((call, heard))

    async def _connect(self) -> None:
        if self._writer is not None:
            return
        found = await asyncio.to_thread(announced, self._weights_uri)
        if found is None:
            raise EngineError("the trainer has published nothing yet")
        self._reader, self._writer = await asyncio.open_connection(*found, limit=MOST_BYTES)
        await self._say({"receivers": self._receivers})

    async def _say(self, message: dict[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(line(message))
        await self._writer.drain()

    async def _hear(self) -> dict[str, Any]:
        assert self._reader is not None
        data = await self._reader.readline()
        if not data.endswith(b"\n"):
            raise EngineError("the trainer has left")
        message: dict[str, Any] = json.loads(data)
        return message


async def _called(llm: Any, name: str, info: dict[str, Any], version: int) -> None:
    """Call one of the four methods of vLLM's weight transfer."""
    from vllm.distributed.weight_transfer.base import (
        WeightTransferInitRequest,
        WeightTransferUpdateRequest,
    )

    match name:
        case "init":
            await llm.init_weight_transfer_engine(WeightTransferInitRequest({"sent": info}))
        case "start":
            await llm.start_weight_update()
        case "update":
            await llm.update_weights(WeightTransferUpdateRequest({"sent": info}))
        case "finish":
            await llm.finish_weight_update(weight_version=str(version))
        case _:
            raise EngineError(f"the trainer calls {name!r}, which no engine knows")


_SHARED_MEMORY = Path("/dev/shm")


def written(tensors: Mapping[str, torch.Tensor]) -> int:
    """Write the tensors as safetensors, into shared memory if there is room.

    Returns a file descriptor that the caller closes; processes of the same user read the file as
    /proc/PID/fd/DESCRIPTOR. Raises WeightsError if the file cannot be written.
    """
    size = sum(tensor.nbytes for tensor in tensors.values())
    shared = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 2 * size
    try:
        with TemporaryDirectory(
            prefix="rollart-", dir=_SHARED_MEMORY if shared else None
        ) as folder:
            file = Path(folder) / "model.safetensors"
            save_tensors(tensors, file)
            return os.open(file, os.O_RDONLY)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise WeightsError(f"weights could not be written for vLLM to read: {reason}") from error
