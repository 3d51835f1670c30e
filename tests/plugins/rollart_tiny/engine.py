"""An engine: the embedded one under another name."""

from rollart_flow import Policy
from rollart_flow.engines.base import Engine
from rollart_flow.engines.embedded_variant import EmbeddedVariant
from rollart_flow.engines.registry import EngineOptions
from rollart_tiny import used


class TinyVariant(EmbeddedVariant):
    """The embedded engine."""

    def build(self, policy: Policy, folder: str, options: EngineOptions) -> Engine:
        used("engine")
        return super().build(policy, folder, options)


VARIANT = TinyVariant()
