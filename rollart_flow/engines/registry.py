"""Registry of engines by the name in `policy.engine`; an engine is imported when it is built.

A description (`EngineVariant`) loads neither torch nor the engine, so that a pipeline can be
checked without them. To add an engine: its module, a module with its description, its name below,
and an extra in `pyproject.toml` if it needs a package. A package adds one through an entry point of
the group `rollart_flow.engines`. Every engine passes `tests/engines/conformance.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from rollart_flow.engines.base import Engine, EnginePhase
from rollart_flow.errors import SettingsError
from rollart_flow.models.architectures import NO_MIXTURE, is_mixture
from rollart_flow.models.policy import Policy
from rollart_flow.registry import Registry, Requirement
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
    takes_images: bool = False
    """Whether the engine serves models that take images, together with the images of a request."""
    receives_weights: bool = False
    """Whether the engine's GPU receives weights that the trainer's GPU sends."""
    follows_policy_device: bool = False
    """Whether the engine computes on `policy.device`; otherwise it uses the GPUs visible to its
    process."""


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
    lora_rank: int = 0
    """Rank of the LoRA adapters that versions consist of; 0 if versions are whole weights."""
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


ENGINES: Registry[EngineVariant] = Registry(
    "engines",
    {
        "embedded": "rollart_flow.engines.embedded_variant:VARIANT",
        "transformers": "rollart_flow.engines.transformers_variant:VARIANT",
        "vllm": "rollart_flow.engines.vllm.variant:VARIANT",
    },
    setting="policy.engine",
    kind=EngineVariant,
)


def engine_capabilities(policy: Policy) -> EngineCapabilities:
    """Return the capabilities of the policy's engine without loading the engine.

    Raises:
        SettingsError: no engine has that name.
    """
    return ENGINES.load(policy.engine).capabilities


def check_engine(
    policy: Policy, *, units: int = 1, prefill_workers: int = 0, adapted: bool = False
) -> None:
    """Reject, before a run starts, an engine that cannot serve the policy, without loading it.

    Args:
        policy: names the engine.
        units: number of units of a resource class that one engine computes on.
        prefill_workers: number of engines that compute prompts for other engines.
        adapted: whether the engine is to generate with a LoRA adapter.

    Raises:
        SettingsError: no engine has that name, or the engine does not support the shape of the
        model, the number of units, prefill for other engines, or adapters.
        MissingExtraError: the engine's packages are not installed.
    """
    variant = ENGINES.load(policy.engine)
    can = variant.capabilities
    if prefill_workers and not can.prefills:
        raise SettingsError(
            f"prefill_workers={prefill_workers}: the {policy.engine} engine computes no "
            "prompts for others; take 0, or policy.engine=vllm"
        )
    if units > 1 and not can.splits_model:
        raise SettingsError(
            f"engine_units={units}: the {policy.engine} engine computes on one unit; "
            "take 1, or policy.engine=vllm"
        )
    if adapted and not can.takes_adapters:
        raise SettingsError(
            f"lora: the {policy.engine} engine takes no adapter; leave it away, or take "
            "policy.engine=vllm"
        )
    if not can.serves_mixtures and is_mixture(policy.path):
        raise SettingsError(NO_MIXTURE)
    variant.check(policy, prefill_workers=prefill_workers)


def check_images(policy: Policy) -> None:
    """Reject, before a run starts, a policy that cannot be shown images.

    A model that is not located yet is checked when it is.

    Raises:
        SettingsError: the engine or the model takes none.
    """
    if not engine_capabilities(policy).takes_images:
        able = " or ".join(
            name for name, each in ENGINES.variants() if each.capabilities.takes_images
        )
        raise SettingsError(
            f"the {policy.engine} engine takes no images; take policy.engine={able}"
        )
    if policy.is_located and not policy.takes_images:
        raise SettingsError(
            "the policy's model takes no images; take one such as Qwen2.5-VL, or "
            "Policy.tiny(images=True)"
        )


def build_engine(policy: Policy, folder: str, options: EngineOptions) -> Engine:
    """Build the engine named by `policy.engine`, which serves the model in `folder` as version 0.

    Raises:
        SettingsError, MissingExtraError: as for `check_engine`, or the engine needs a GPU and this
        process sees none.
        EngineError: the engine could not start.
    """
    check_engine(
        policy,
        units=options.units,
        prefill_workers=int(options.phase is not None),
        adapted=options.lora is not None,
    )
    return ENGINES.load(policy.engine).build(policy, folder, options)
