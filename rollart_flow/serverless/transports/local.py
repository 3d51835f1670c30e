"""The `local://module:function?processes=N` transport: a process pool on this machine without a
network.

The messages are the same as over a network, so a function behaves the same with both.
"""

import os
from urllib.parse import parse_qsl

from rollart_flow.errors import SettingsError
from rollart_flow.serverless.endpoint import Endpoint, load_function
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports.base import Transport, limited


class LocalTransport(Transport):
    """A transport to an endpoint in this process, whose function runs in separate processes."""

    def __init__(self, name: str, processes: int) -> None:
        self._endpoint = Endpoint(load_function(name), max_concurrent=processes)
        self._processes = processes

    async def send(self, body: bytes, timeout_s: float) -> bytes:
        async with limited(timeout_s):
            return await self._endpoint(body)

    async def warm(self, count: int) -> None:
        await self._endpoint.warm(min(count, self._processes))

    async def close(self) -> None:
        await self._endpoint.close()


def open_transport(url: str, policy: CallPolicy) -> LocalTransport:
    """Create the transport to a function on this machine; the default is one process per CPU."""
    name, _, query = url.removeprefix("local://").partition("?")
    parameters = dict(parse_qsl(query))
    processes = parameters.pop("processes", str(os.cpu_count() or 1))
    if parameters or not processes.isdecimal() or int(processes) < 1:
        raise SettingsError(f"local://{name}?{query} takes processes=N, N >= 1, and nothing else")
    return LocalTransport(name, min(int(processes), policy.max_concurrent))
