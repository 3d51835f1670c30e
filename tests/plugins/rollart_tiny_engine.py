"""A package that adds an engine: the embedded one under another name, which says that it ran."""

import os
from pathlib import Path

from rollart_flow import Policy
from rollart_flow.engines.base import Engine
from rollart_flow.engines.embedded_variant import EmbeddedVariant
from rollart_flow.engines.variant import EngineOptions


class TinyVariant(EmbeddedVariant):
    """Builds the embedded engine and leaves a file that says so."""

    def build(self, policy: Policy, folder: str, options: EngineOptions) -> Engine:
        Path(os.environ["TINY_ENGINE_BUILT"]).write_text(options.worker)
        return super().build(policy, folder, options)


VARIANT = TinyVariant()
