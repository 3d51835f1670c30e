"""`serve://`: a real Ray Serve application that starts from nothing and goes back to nothing."""

import asyncio
import os
import select
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rollart_flow.errors import RewardFailedError, ServerlessError
from rollart_flow.serverless import CallPolicy, ServerlessReward, serve_app
from rollart_flow.types import Trajectory
from tests.local_ray import tolerating_ray
from tests.serverless.trajectories import TRAJECTORY, attempt

ENDS_WITHIN_MS = 60_000


async def pid(trajectory: Trajectory) -> float:
    if trajectory.attempt == 13:
        raise KeyError("gold answer")
    return float(os.getpid())


@pytest.fixture(scope="module")
def app() -> Iterator[str]:
    """The name of a deployed application."""
    with tolerating_ray():
        import ray
        from ray import serve

        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            serve.start(proxy_location="Disabled")
            serve.run(serve_app(pid, idle_s=2.0, num_cpus=0.1), name="rewards", route_prefix=None)
            yield "rewards"
        finally:
            serve.shutdown()
            ray.shutdown()


def test_it_starts_when_it_is_called_and_ends_when_it_is_not(app: str) -> None:
    async def test() -> int:
        reward = ServerlessReward(f"serve://{app}", CallPolicy(deadline_s=60.0, hedge_after_s=None))
        await reward.warm(1)
        process = await reward(TRAJECTORY)
        scores = await asyncio.gather(*(reward(attempt(n)) for n in range(8)))
        assert set(scores) == {process}
        with pytest.raises(RewardFailedError, match="KeyError: 'gold answer'"):
            await reward(attempt(13))
        await reward.close()
        assert isinstance(process, float)
        return os.pidfd_open(int(process))

    with tolerating_ray():
        replica = asyncio.run(test())
    end = select.poll()
    end.register(replica, select.POLLIN)
    ended = end.poll(ENDS_WITHIN_MS)
    os.close(replica)
    assert ended


def test_an_application_that_is_not_there_is_refused(app: str) -> None:
    policy = replace(CallPolicy(), deadline_s=60.0)
    with (
        tolerating_ray(),
        pytest.raises(ServerlessError, match=r"no application 'other'; deploy it with serve.run"),
    ):
        asyncio.run(ServerlessReward("serve://other", policy)(TRAJECTORY))
