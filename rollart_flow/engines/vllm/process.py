"""Starts vLLM: its environment, its arguments, and what it must be able to do with the model.

The invariant: nothing of it listens beyond loopback, calls home or fetches anything, and its
processes end with the one that started them (`transfer`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rollart_flow.engines.vllm.adapters import lora_arguments
from rollart_flow.engines.vllm.prefixes import connector
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.errors import EngineError, SettingsError
from rollart_flow.models.qwen3 import ModelConfig

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

TRANSFER = "rollart"
"""Name of our weight transfer in vLLM's registry, where weights are files."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on CPUs one process beside ours instead of two
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOOPBACK_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two engines of a machine would share one core
}
"""Of a process that holds an engine, and of those that it starts."""
QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "NIXL_LOG_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
}
"""As above, where the user has not said otherwise."""
CACHED_CHAINS = 64
"""On CPUs: finished chains whose prefix can be kept for reuse, beyond those that decode."""
_BLOCK_TOKENS = 128
"""On CPUs: tokens of one block of the KV cache; a chain fills the last one in part."""


def transfer_name(kind: str | None) -> str:
    """Of the one that also receives what is sent in a way of `weights.broadcast`; None: files
    alone."""
    return TRANSFER if kind is None else f"{TRANSFER}_{kind}"


def start(folder: str | Path, config: ModelConfig, settings: VllmSettings) -> AsyncLLM:
    """Load vLLM and have it serve a folder; takes seconds, in which the caller does nothing else.

    Raises:
        SettingsError: vLLM cannot compute this model on this machine, or the adapter is none.
        EngineError: vLLM could not start; its log says why.
    """
    lora = lora_arguments(settings.lora)
    os.environ.update(ENVIRONMENT)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    if on_cpu:
        # Compiling costs more than it brings here, and would happen at the first request.
        os.environ["TORCH_COMPILE_DISABLE"] = "1"
        _check_on_cpu(config, settings)
    from vllm import AsyncEngineArgs
    from vllm.config import WeightTransferConfig
    from vllm.v1.engine.async_llm import AsyncLLM

    context, phase = settings.max_context or config.max_position_embeddings, settings.phase
    arguments = AsyncEngineArgs(
        model=str(folder),
        dtype=settings.dtype,
        max_model_len=context,
        max_num_seqs=settings.max_batch,
        tensor_parallel_size=settings.tensor_parallel,
        seed=settings.seed,
        skip_tokenizer_init=True,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        max_logprobs=-1,
        enforce_eager=on_cpu,
        # What other engines fetch from must stay where it is.
        enable_sleep_mode=not on_cpu and phase is None,
        kv_cache_memory_bytes=_cache_bytes(config, settings, context) if on_cpu else None,
        disable_log_stats=True,
        kv_transfer_config=None if phase is None else connector(phase, on_cpu=on_cpu),
        weight_transfer_config=WeightTransferConfig(
            backend=transfer_name(None if settings.sent is None else settings.sent.kind)
        ),
        worker_extension_cls="rollart_flow.engines.vllm.transfer.WorkerExtension",
        **lora,
    )
    try:
        return AsyncLLM.from_engine_args(arguments)
    except Exception as error:  # vLLM raises whatever its processes do
        line = " ".join(str(error).split()) or type(error).__name__
        raise EngineError(f"vLLM could not start: {line}") from error


def _check_on_cpu(config: ModelConfig, settings: VllmSettings) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    widths = CPUAttentionBackend.get_supported_head_sizes()
    if config.head_dim not in widths:
        raise SettingsError(
            f"policy: vLLM on CPUs computes attention heads of a width in {widths}, not "
            f"{config.head_dim}; change hidden or heads, or take the embedded engine"
        )
    if config.experts is not None and settings.lora is not None:
        raise SettingsError(
            "lora: vLLM on CPUs lays no adapter over a mixture of experts, for which its kernels "
            "need a GPU; leave it away, or merge it into the weights"
        )


def _cache_bytes(config: ModelConfig, settings: VllmSettings, context: int) -> int:
    """Room for `max_batch` chains of the longest kind and `CACHED_CHAINS` finished ones."""
    width = 4 if settings.dtype == "float32" else 2
    values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    blocks = -(-context // _BLOCK_TOKENS) * (settings.max_batch + CACHED_CHAINS) + 1
    return blocks * _BLOCK_TOKENS * values * width
