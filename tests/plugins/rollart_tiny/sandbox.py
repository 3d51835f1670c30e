"""A sandbox that no machine can make, and says so."""

from rollart_flow.errors import SandboxError
from rollart_flow.sandbox.base import Sandbox, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.variant import SandboxVariant
from rollart_tiny import used


class TinySandboxVariant(SandboxVariant):
    """Notes that it was asked for a box."""

    def problem(self) -> str:
        return ""

    async def create(self, spec: SandboxSpec, snapshot: SandboxSnapshot | None) -> Sandbox:
        used("sandbox")
        raise SandboxError("the box is too tiny")


VARIANT = TinySandboxVariant()
