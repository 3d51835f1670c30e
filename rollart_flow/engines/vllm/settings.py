"""The settings of one vLLM engine; loads no vLLM module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollart_flow.engines.base import EnginePhase
from rollart_flow.errors import SettingsError
from rollart_flow.models.lora import MOST_RANK, read_adapter
from rollart_flow.models.policy import DTYPES
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
    lora_rank: int = 0
    """Rank of the adapters that versions consist of, for which vLLM keeps room; 0: versions are
    whole weights. An engine with `lora` is given whole weights in any case."""
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


def lora_arguments(settings: VllmSettings) -> dict[str, Any]:
    """Return vLLM's arguments for adapters, none without any and none for a rank that vLLM cannot
    allocate, whose versions are merged; SettingsError if vLLM does not support `settings.lora`."""
    rank = settings.lora_rank if settings.lora is None else read_adapter(settings.lora).rank
    if not 1 <= rank <= MOST_RANK:
        return {}
    room = min(each for each in _RANKS if each >= rank)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}


def lora_request(folder: str | None) -> LoRARequest | None:
    """Return the adapter of a folder in the form that each request names, or None."""
    return None if folder is None else named_request("adapter", read_adapter(folder).folder)


ADAPTER_ID = 1
"""vLLM's number of the one adapter of an engine."""


def named_request(name: str, folder: str = "loaded", *, load: bool = False) -> LoRARequest:
    """Return a request for the one adapter that an engine has.

    Args:
        name: name of the adapter, under which vLLM caches prefixes.
        folder: the adapter in PEFT's format, read only when vLLM loads it.
        load: whether vLLM is to load it in place of the one that it holds.
    """
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, ADAPTER_ID, folder, load_inplace=load)
