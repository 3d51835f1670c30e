"""A reward transport: the environment's reward, scored in the calling process."""

from rollart_flow.rewards.base import Score, environment_reward
from rollart_flow.serverless.endpoint import Endpoint
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports.base import Transport
from rollart_flow.types import Trajectory
from rollart_tiny import used


async def score(trajectory: Trajectory) -> Score:
    """Return the environment's reward."""
    result = environment_reward(trajectory)
    assert isinstance(result, int | float)
    return float(result)


class TinyTransport(Transport):
    """Answers without a network."""

    def __init__(self, policy: CallPolicy) -> None:
        self._endpoint = Endpoint(score, max_concurrent=policy.max_concurrent)

    async def send(self, body: bytes, timeout_s: float) -> bytes:
        return await self._endpoint(body)

    async def close(self) -> None:
        await self._endpoint.close()


def open_transport(url: str, policy: CallPolicy) -> TinyTransport:
    """Create the transport; the rest of the URL has no meaning."""
    used("reward transport")
    return TinyTransport(policy)
