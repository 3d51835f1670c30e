"""Backends of vLLM's weight transfer, loaded in vLLM's own processes.

vLLM imports this module by name (`worker_extension_cls`), which registers the backends. The
invariant: after an update, every parameter and all data that vLLM derives from parameters belong to
the new weights. The kernel ends a process that holds the model when its parent ends.
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
from rollart_flow.engines.vllm.settings import ADAPTER_ID, named_request
from rollart_flow.weights.broadcast.wire import read

_PR_SET_PDEATHSIG = 1


@dataclass
class FileInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Initialization data of the file transfer, which needs none."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The location of the new weights."""

    path: str
    """A safetensors file with every tensor of the model, in Hugging Face names."""


class FileTransfer(WeightTransferEngine):  # type: ignore[misc]
    """A transfer that reads weights from a file that the engine has just written."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Do nothing: there is no connection to open."""

    def start_weight_update(self) -> None:
        """Prepare every layer to load tensors in checkpoint format."""
        initialize_layerwise_reload(self.model)
        if self.device.type == "cpu":
            for layer in self.model.modules():
                # vLLM packs expert weights for a CPU only for a new kernel; otherwise it would copy
                # unpacked weights over packed ones.
                method: Any = getattr(layer, "quant_method", None)
                if hasattr(method, "moe_kernel"):
                    method.moe_kernel = None

    def update_weights(self, update_info: dict[str, str]) -> None:
        """Load the file. The base class waits for an accelerator, which may not exist."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdate) -> None:
        with safe_open(update_info.path, framework="pt") as file:
            self.model.load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118

    def finish_weight_update(self) -> None:
        """Rebuild the data that vLLM derives from the weights."""
        finalize_layerwise_reload(self.model, self.model_config)
        for name, head in self.model.named_modules():
            # A head tied to the embeddings has no tensor of its own, so reloading skips its packed
            # copy, which would keep the old weights. In a model with a vision tower, it is a part
            # of the language model.
            if name.rpartition(".")[2] == "lm_head" and hasattr(head, "cpu_linear"):
                head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Do nothing: there is no connection to close."""


@dataclass
class SentInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Initialization data from the sender; None before a sender exists."""

    sent: dict[str, Any] | None = None


class SentTransfer(FileTransfer):
    """A transfer that receives weights from the trainer through vLLM's own engine; it also reads
    files."""

    init_info_cls = SentInit
    within_cls: ClassVar[type[WeightTransferEngine]]
    """The class of vLLM's receiving engine."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._within: WeightTransferEngine = self.within_cls(*arguments)
        self._received = False

    def init_transfer_engine(self, init_info: SentInit) -> None:
        """Join the given sender, in place of a previous one."""
        if init_info.sent is not None:
            self._within.shutdown()
            self._within.init_transfer_engine(self._within.parse_init_info(init_info.sent))

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive the weights being sent, or load a file."""
        self._received = "sent" in update_info
        if self._received:
            self._within.update_weights(read(update_info["sent"]))
        else:
            super().update_weights(update_info)

    def finish_weight_update(self) -> None:
        """Rebuild the data that vLLM derives from the weights, and release borrowed memory."""
        if self._received:
            self._within.finish_weight_update()
        else:
            super().finish_weight_update()

    def shutdown(self) -> None:
        self._within.shutdown()


class NcclTransfer(SentTransfer):
    """A transfer by NCCL from another GPU."""

    within_cls = NCCLWeightTransferEngine


class IpcTransfer(SentTransfer):
    """A transfer through memory of the GPU that the trainer also uses."""

    within_cls = IPCWeightTransferEngine


class WorkerExtension:
    """Additional methods of vLLM's workers."""

    def kv_cache_bytes(self) -> int:
        """Return the size of this worker's KV cache [bytes]."""
        runner = self.model_runner  # type: ignore[attr-defined]
        return sum(cache.nbytes for cache in runner.kv_caches)

    def lay_zeros(self) -> None:
        """Hold an adapter of zeros in place of the one that requests name."""
        manager = self.model_runner.lora_manager  # type: ignore[attr-defined]
        manager.remove_adapter(ADAPTER_ID)
        manager.add_dummy_lora(named_request("zeros"), rank=1)

    def give_up_prefix(self, request_id: str) -> None:
        """End the lease of the prompt held for a request, so that vLLM frees it."""
        leases = get_kv_transfer_group().connector_worker._reqs_to_send
        for name in leases:
            if name.rpartition("-")[0] == request_id:  # vLLM appends a suffix of its own
                leases[name] = 0.0


WeightTransferEngineFactory.register_engine(TRANSFER, FileTransfer)
WeightTransferEngineFactory.register_engine(transfer_name("nccl"), NcclTransfer)
WeightTransferEngineFactory.register_engine(transfer_name("ipc"), IpcTransfer)
