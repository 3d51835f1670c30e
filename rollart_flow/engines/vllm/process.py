"""Startup of vLLM: its environment, its arguments and the checks of the model.

The invariant: vLLM listens on loopback only, sends no usage data and downloads nothing, and its
processes end with the process that started them (`transfer`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart_flow.engines.vllm.cpu_memory import (
    available_bytes,
    cache_bytes,
    weights_bytes,
)
from rollart_flow.engines.vllm.prefixes import connector
from rollart_flow.engines.vllm.settings import VllmSettings, lora_arguments
from rollart_flow.errors import EngineError, SettingsError
from rollart_flow.models.language_model import ModelShape

if TYPE_CHECKING:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

TRANSFER = "rollart"
"""Name of our weight transfer in vLLM's registry, where weights are files."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on CPUs: one extra process, not two
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOOPBACK_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else two engines of a machine share one core
}
"""Environment of a process that holds an engine, and of its child processes."""
QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "NIXL_LOG_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Defaults for the same environment; variables that the user has set take precedence."""


def transfer_name(backend: str | None) -> str:
    """Return the name of the transfer that also receives what a backend of vLLM sends; None means
    files alone."""
    return TRANSFER if backend is None else f"{TRANSFER}_{backend}"


def start(
    folder: str | Path, config: ModelShape, settings: VllmSettings, *, sees: bool = False
) -> AsyncLLM:
    """Start vLLM on the model in a folder; this blocks the caller for seconds.

    Args: `sees` is whether the model takes images, for which vLLM needs its tokenizer.

    Raises:
        SettingsError: vLLM does not support this model on this machine, whose memory may be too
            small for its KV cache, or the adapter is invalid.
        EngineError: vLLM could not start; its log has the cause.
    """
    lora = lora_arguments(settings)
    os.environ.update(ENVIRONMENT)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from vllm.platforms import current_platform

    context, cache = settings.max_context or config.max_position_embeddings, None
    if current_platform.is_cpu():
        # Compilation costs more than it saves on CPUs, and would happen at the first request.
        os.environ["TORCH_COMPILE_DISABLE"] = "1"
        _check_on_cpu(config, settings)
        cache = cache_bytes(
            config, settings, context,
            available=available_bytes(), weights=weights_bytes(Path(folder)),
        )  # fmt: skip
        lora = {} if config.mixes else lora  # versions are merged
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = _arguments(
        folder,
        settings,
        max_model_len=context,
        skip_tokenizer_init=not sees,
        kv_cache_memory_bytes=cache,
        **lora,
    )
    try:
        return AsyncLLM.from_engine_args(arguments)
    except Exception as error:  # vLLM raises any exception of its processes
        line = " ".join(str(error).split()) or type(error).__name__
        raise EngineError(f"vLLM could not start: {line}") from error


def _arguments(folder: str | Path, settings: VllmSettings, **more: Any) -> AsyncEngineArgs:
    """Return the arguments of vLLM for a model in a folder, with further ones."""
    from vllm import AsyncEngineArgs
    from vllm.config import WeightTransferConfig
    from vllm.platforms import current_platform

    on_cpu, phase = current_platform.is_cpu(), settings.phase
    return AsyncEngineArgs(
        model=str(folder),
        dtype=settings.dtype,
        max_num_seqs=settings.max_batch,
        tensor_parallel_size=settings.tensor_parallel,
        seed=settings.seed,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        max_logprobs=-1,
        enforce_eager=on_cpu,
        # Memory from which other engines fetch must not move.
        enable_sleep_mode=not on_cpu and phase is None,
        disable_log_stats=True,
        kv_transfer_config=None if phase is None else connector(phase, on_cpu=on_cpu),
        weight_transfer_config=WeightTransferConfig(
            backend=transfer_name(None if settings.sent is None else settings.sent.backend)
        ),
        worker_extension_cls="rollart_flow.engines.vllm.transfer.WorkerExtension",
        **more,
    )


def _check_on_cpu(config: ModelShape, settings: VllmSettings) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    widths = CPUAttentionBackend.get_supported_head_sizes()
    if config.head_dim not in widths:
        raise SettingsError(
            f"policy: vLLM on CPUs computes attention heads of a width in {widths}, not "
            f"{config.head_dim}; change hidden or heads, or take the embedded engine"
        )
    if config.mixes and settings.lora is not None:
        raise SettingsError(
            "lora: vLLM on CPUs lays no adapter over a mixture of experts, for which its kernels "
            "need a GPU; leave it away, or merge it into the weights"
        )
