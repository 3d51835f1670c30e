"""The `serve://app` transport: a Ray Serve application of this Ray cluster, called through its
handle.

A Ray Serve call costs about 3 ms of CPU, so rewards share calls; see `coalesced`. An application
without replicas gets one when the first call arrives, which takes seconds; the call waits for it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from rollart_flow.errors import EndpointTroubleError, ServerlessError
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports.base import Transport, limited
from rollart_flow.serverless.transports.coalesced import Answers, Coalescer


class ServeTransport(Transport):
    """A transport that looks up the application at the first call."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._handle: Any = None
        self._calls = Coalescer(self._message)

    async def send(self, body: bytes, timeout_s: float) -> bytes:
        async with limited(timeout_s):
            return await self._calls.call(body)

    async def close(self) -> None:
        await self._calls.close()

    def _message(self, calls: list[bytes]) -> AsyncIterator[Answers]:
        return self._answers(calls, None if self._handle is None else self._sent(calls))

    def _sent(self, calls: list[bytes]) -> Any:
        with _as_trouble():
            return self._handle.remote(calls)

    async def _answers(self, calls: list[bytes], response: Any) -> AsyncIterator[Answers]:
        if response is None:
            self._handle = await asyncio.to_thread(self._find)
            response = self._sent(calls)
        try:
            with _as_trouble():
                async for answers in response:
                    yield answers
        except asyncio.CancelledError as error:
            response.cancel()
            task = asyncio.current_task()
            if (
                task is not None and task.cancelling()
            ):  # a replica that ends also cancels its requests
                raise
            raise EndpointTroubleError("the application cancelled the calls") from error

    def _find(self) -> Any:
        try:
            handle = serve.get_app_handle(self._app)
            return handle.options(method_name="answers", stream=True)
        except (RayServeException, ray.exceptions.RayError) as error:
            raise ServerlessError(
                f"Ray Serve runs no application {self._app!r}; deploy it with "
                f"serve.run(serve_app(function), name={self._app!r})"
            ) from error


@contextmanager
def _as_trouble() -> Iterator[None]:
    try:
        yield
    except (RayServeException, ray.exceptions.RayError) as error:
        said = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        raise EndpointTroubleError(f"the application broke off: {said}") from error


def open_transport(url: str, policy: CallPolicy) -> ServeTransport:
    """Create the transport to an application of the cluster that this process is connected to."""
    return ServeTransport(url.removeprefix("serve://").rstrip("/"))
