"""How new weights get into vLLM: backends of its weight transfer, loaded in its own processes.

vLLM imports this module there by name (`worker_extension_cls`), which registers the backend. The
invariant: after an update every parameter, and all that vLLM keeps derived from one, is of the new
weights. A process that holds the model ends with its parent: the kernel sees to it.
"""

import ctypes
import signal
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from safetensors import safe_open
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from rollart_flow.engines.vllm.process import TRANSFER, transfer_name
from rollart_flow.weights.broadcast.wire import read

_PR_SET_PDEATHSIG = 1


@dataclass
class FileInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed upon."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Where the new weights are."""

    path: str
    """A safetensors file with every tensor of the model, in Hugging Face names."""


class FileTransfer(WeightTransferEngine):  # type: ignore[misc]
    """Reads weights from a file that the engine has just written for it."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        """Arguments as vLLM's factory gives them."""
        super().__init__(*arguments)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """There is nothing to connect to."""

    def start_weight_update(self) -> None:
        """Make every layer ready to take tensors in the form of a checkpoint."""
        initialize_layerwise_reload(self.model)
        if self.device.type == "cpu":
            for layer in self.model.modules():
                # Only with a new kernel, vLLM packs the weights of experts for a CPU; it would copy
                # those that come as they are over packed ones.
                method: Any = getattr(layer, "quant_method", None)
                if hasattr(method, "moe_kernel"):
                    method.moe_kernel = None

    def update_weights(self, update_info: dict[str, str]) -> None:
        """Load the file. The base class waits for an accelerator, which may not be there."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Load every tensor of the file."""
        with safe_open(update_info.path, framework="pt") as file:
            self.model.load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118

    def finish_weight_update(self) -> None:
        """Derive again what vLLM keeps of the weights in another form."""
        finalize_layerwise_reload(self.model, self.model_config)
        head = self.model.lm_head
        if hasattr(head, "cpu_linear"):
            # Tied to the embeddings it has no tensor of its own, so reloading passes its packed
            # copy over: it would go on with the old weights.
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """There is nothing to disconnect from."""


@dataclass
class SentInit(WeightTransferInitInfo):  # type: ignore[misc]
    """What the sender agrees upon; None before there is one."""

    sent: dict[str, Any] | None = None


class SentTransfer(FileTransfer):
    """Receives what the trainer sends, through vLLM's own engine, and reads files as well."""

    init_info_cls = SentInit
    within_cls: ClassVar[type[WeightTransferEngine]]
    """vLLM's engine that receives."""

    def __init__(self, *arguments: Any) -> None:
        """Arguments as vLLM's factory gives them."""
        super().__init__(*arguments)
        self._within: WeightTransferEngine = self.within_cls(*arguments)
        self._received = False

    def init_transfer_engine(self, init_info: SentInit) -> None:
        """Join the sender that says so, in place of one before it."""
        if init_info.sent is not None:
            self._within.shutdown()
            self._within.init_transfer_engine(self._within.parse_init_info(init_info.sent))

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive what is sent now, or load a file."""
        self._received = "sent" in update_info
        if self._received:
            self._within.update_weights(read(update_info["sent"]))
        else:
            super().update_weights(update_info)

    def finish_weight_update(self) -> None:
        """Derive again what vLLM keeps of the weights, and let go of what was lent."""
        if self._received:
            self._within.finish_weight_update()
        else:
            super().finish_weight_update()

    def shutdown(self) -> None:
        """Leave the sender."""
        self._within.shutdown()


class NcclTransfer(SentTransfer):
    """By NCCL, from another GPU."""

    within_cls = NCCLWeightTransferEngine


class IpcTransfer(SentTransfer):
    """By memory of the GPU that the trainer is on too."""

    within_cls = IPCWeightTransferEngine


class WorkerExtension:
    """Methods that vLLM's workers get besides their own."""

    def kv_cache_bytes(self) -> int:
        """Memory of this worker's KV cache [bytes]."""
        runner = self.model_runner  # type: ignore[attr-defined]
        return sum(cache.nbytes for cache in runner.kv_caches)

    def give_up_prefix(self, request_id: str) -> None:
        """Let vLLM free the prompt that this worker holds for a request: its lease has ended."""
        leases = get_kv_transfer_group().connector_worker._reqs_to_send
        for name in leases:
            if name.rpartition("-")[0] == request_id:  # vLLM appends a part of its own
                leases[name] = 0.0


WeightTransferEngineFactory.register_engine(TRANSFER, FileTransfer)
WeightTransferEngineFactory.register_engine(transfer_name("nccl"), NcclTransfer)
WeightTransferEngineFactory.register_engine(transfer_name("ipc"), IpcTransfer)
