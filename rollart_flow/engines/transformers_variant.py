"""The description of the engine that computes with transformers; loads neither torch nor it."""

from importlib.util import find_spec

from rollart_flow.engines.embedded_variant import EmbeddedVariant
from rollart_flow.engines.registry import EngineCapabilities
from rollart_flow.errors import MissingExtraError
from rollart_flow.models.architectures import TRANSFORMERS
from rollart_flow.models.policy import Policy
from rollart_flow.registry import Requirement


class TransformersVariant(EmbeddedVariant):
    """The embedded engine's batching over a model of transformers, in the caller's process."""

    capabilities = EngineCapabilities(
        serves_mixtures=True, takes_images=True, follows_policy_device=True
    )
    implementation = TRANSFORMERS
    requirements = (Requirement("transformers", ("transformers",), "hf"),)

    def check(self, policy: Policy, *, prefill_workers: int) -> None:
        if find_spec("transformers") is None:
            raise MissingExtraError(
                "policy.engine 'transformers' needs an extra: pip install 'rollart-flow[hf]'"
            )


VARIANT = TransformersVariant()
