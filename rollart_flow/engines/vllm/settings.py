"""What of vLLM is chosen for a worker; loads nothing of vLLM."""

from dataclasses import dataclass

from rollart_flow.engines.base import EnginePhase
from rollart_flow.engines.vllm.receiver import Sent
from rollart_flow.errors import SettingsError
from rollart_flow.models.policy import DTYPES


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """How one engine serves a model.

    Raises:
        SettingsError: a value is impossible.
    """

    dtype: str = "float32"
    """What is computed in; logprobs are float32 either way."""
    max_context: int | None = None
    """Longest chain in tokens, prompt and answer; None: what the model allows."""
    max_batch: int = 64
    """Requests that decode together; others wait."""
    chunk_tokens: int = 32
    """Tokens that are streamed at once; a shorter answer is one chunk."""
    tensor_parallel: int = 1
    """Devices, or processes on CPUs, that the model is split over."""
    seed: int = 0
    """Of all draws, in their order. Engines of one seed would draw alike: give each its own."""
    phase: EnginePhase | None = None
    """None: it computes prompts and draws tokens. Otherwise what it does of both."""
    lora: str | None = None
    """Folder of a LoRA adapter in PEFT's format that every token is drawn with, over whatever
    weights are loaded. None: the weights alone."""
    sent: Sent | None = None
    """How the trainer sends new weights to its GPU. None: they are loaded from files."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise SettingsError(f"engine: dtype must be one of {', '.join(DTYPES)}")
        for name in ("max_batch", "chunk_tokens", "tensor_parallel"):
            if getattr(self, name) < 1:
                raise SettingsError(f"engine: {name} must be at least 1")
