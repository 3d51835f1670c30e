"""A box for code without an event loop, such as an environment in a process of its own."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from rollart_flow.errors import SandboxError
from rollart_flow.sandbox.base import SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.box import Box
from rollart_flow.sandbox.registry import create_sandbox

T = TypeVar("T")


class BlockingSandbox(Box):
    """A box with an event loop of its own.

    One thread uses it, outside of any event loop. The box ends with `close`, or with the process.

    Args:
        spec: contents and limits, as for `create_sandbox`.
        variant: name in `SANDBOXES`.
        snapshot: files that the box begins with.

    Raises:
        SettingsError: as `create_sandbox`.
        SandboxError: the box could not be started.
    """

    def __init__(
        self,
        spec: SandboxSpec | None = None,
        *,
        variant: str = "bubblewrap",
        snapshot: SandboxSnapshot | None = None,
    ) -> None:
        self._runner: asyncio.Runner | None = asyncio.Runner()
        try:
            box = self._run(create_sandbox(spec, variant=variant, snapshot=snapshot))
        except BaseException:
            self._runner.close()
            raise
        super().__init__(box, self._run)

    def close(self) -> None:
        """End the box with all that it holds. May be called twice."""
        if self._runner is not None:
            self._run(self._box.close())
            self._runner.close()
            self._runner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        if self._runner is None:
            call.close()
            raise SandboxError("the sandbox has ended: it was closed")
        return self._runner.run(call)
