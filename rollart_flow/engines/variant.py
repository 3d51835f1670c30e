"""The description of an engine: its capabilities, its checks and its construction.

A description loads neither torch nor the engine, so that a pipeline can be checked without them. To
add an engine: its module, a module with its `EngineVariant`, its name in `engines.registry`, and an
extra in `pyproject.toml` if it needs a package. A package adds one through an entry point of the
group `rollart_flow.engines`. Every engine passes `tests/engines/conformance.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from rollart_flow.engines.base import Engine, EnginePhase
from rollart_flow.models.policy import Policy
from rollart_flow.registry import Requirement
from rollart_flow.weights.transport import SentWeights


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """The capabilities of an engine."""

    splits_model: bool = False
    """Whether the engine splits a model over several units of a resource class."""
    prefills: bool = False
    """Whether the engine computes prompts for other engines."""
    takes_adapters: bool = False
    """Whether the engine generates with a LoRA adapter on top of the weights."""
    serves_mixtures: bool = False
    """Whether the engine supports mixture-of-experts models."""
    receives_weights: bool = False
    """Whether the engine's GPU receives weights that the trainer's GPU sends."""
    follows_policy_device: bool = False
    """Whether the engine computes on `policy.device`; otherwise it uses the GPUs visible to its
    process.
    """


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of one engine of a run, in addition to the policy's settings."""

    seed: int
    worker: str = ""
    """Name of the worker that holds the engine."""
    units: int = 1
    """Units of a resource class that the engine computes on."""
    phase: EnginePhase | None = None
    """Role of the engine when separate workers compute prompts; None means both roles."""
    lora: str | None = None
    """Folder of a LoRA adapter to generate with; None means the weights alone."""
    sent: SentWeights | None = None
    """How the trainer sends weights to the engine's GPU; None means that the engine reads them."""


class EngineVariant(ABC):
    """An engine variant that `policy.engine` can name."""

    capabilities: ClassVar[EngineCapabilities]
    requirements: ClassVar[tuple[Requirement, ...]] = ()

    @abstractmethod
    def check(self, policy: Policy, *, prefill_workers: int) -> None:
        """Reject a policy that this engine cannot serve, beyond the checks of `capabilities`.

        Args:
            policy: a policy that names this engine.
            prefill_workers: number of engines that compute prompts for other engines.

        Raises:
            SettingsError: the engine does not support the shape of the model.
            MissingExtraError: the engine's packages are not installed.
        """

    @abstractmethod
    def build(self, policy: Policy, folder: str, options: EngineOptions) -> Engine:
        """Build the engine, which serves the model in a Hugging Face folder as version 0.

        Raises:
            SettingsError: a setting is impossible on this machine.
            EngineError: the engine could not start.
        """
