"""`serve://app`: a Ray Serve application of this Ray cluster, called through its handle.

An application without replicas gets one when the first call arrives, which takes seconds; the call
waits for it.
"""

import asyncio
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from rollart_flow.errors import EndpointTroubleError, ServerlessError
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports.base import Transport, limited


class ServeTransport(Transport):
    """Finds the application at the first call."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._handle: Any = None

    async def send(self, body: bytes, timeout_s: float) -> bytes:
        """See `Transport`."""
        async with limited(timeout_s):
            if self._handle is None:
                self._handle = await asyncio.to_thread(self._find)
            response = self._handle.remote(body)
            try:
                answer: bytes = await response
            except asyncio.CancelledError:
                response.cancel()
                raise
            except (RayServeException, ray.exceptions.RayError) as error:
                said = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
                raise EndpointTroubleError(f"the application broke off: {said}") from error
        return answer

    def _find(self) -> Any:
        try:
            return serve.get_app_handle(self._app)
        except (RayServeException, ray.exceptions.RayError) as error:
            raise ServerlessError(
                f"Ray Serve runs no application {self._app!r}; deploy it with "
                f"serve.run(serve_app(function), name={self._app!r})"
            ) from error


def open_transport(url: str, policy: CallPolicy) -> ServeTransport:
    """The transport to an application of the cluster that this process is connected to."""
    return ServeTransport(url.removeprefix("serve://").rstrip("/"))
