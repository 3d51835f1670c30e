"""The description of an engine: what it can do, what it refuses, and how it is built.

A description loads neither torch nor the engine, so that a pipeline can be checked without them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from rollart_flow.engines.base import Engine, EnginePhase
from rollart_flow.engines.vllm.receiver import Sent
from rollart_flow.models.policy import Policy


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do."""

    splits_model: bool = False
    """Whether it splits a model over several units of a resource class."""
    prefills: bool = False
    """Whether it computes prompts for other engines."""
    takes_adapters: bool = False
    """Whether it generates with a LoRA adapter over the weights."""
    serves_mixtures: bool = False
    """Whether it computes mixtures of experts."""
    receives_weights: bool = False
    """Whether its GPU receives weights that the trainer's GPU sends."""
    follows_policy_device: bool = False
    """Whether it computes on `policy.device`; otherwise on the GPUs that its process sees."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What one engine of a run is told beside the policy's settings."""

    seed: int
    worker: str = ""
    """Name of the worker that holds the engine."""
    units: int = 1
    """Units of a resource class that the engine computes on."""
    phase: EnginePhase | None = None
    """What the engine does where prompts are computed on workers of their own; None: all."""
    lora: str | None = None
    """Folder of a LoRA adapter to generate with; None: the weights alone."""
    sent: Sent | None = None
    """How the trainer sends weights to the engine's GPU; None: the engine reads them."""


class EngineVariant(ABC):
    """One engine that `policy.engine` can name."""

    capabilities: ClassVar[EngineCapabilities]

    @abstractmethod
    def check(self, policy: Policy, *, prefill_workers: int) -> None:
        """Refuse a policy that this engine will not serve, beyond what `capabilities` says.

        Args:
            policy: names this engine.
            prefill_workers: number of engines that compute prompts for the others.

        Raises:
            SettingsError: the engine does not compute a model of this shape.
            MissingExtraError: the engine's packages are not installed.
        """

    @abstractmethod
    def build(self, policy: Policy, folder: str, options: EngineOptions) -> Engine:
        """The engine, serving the model in a Hugging Face folder as version 0.

        Raises:
            SettingsError: a setting is impossible on this machine.
            EngineError: the engine could not start.
        """
