"""Methods of a worker that an endpoint runs: the third part of ROLLART's Listing 1."""

import asyncio
import inspect
from dataclasses import replace

import pytest
import ray

from rollart_flow.errors import RewardFailedError
from rollart_flow.resources import Cluster, Placement, RewardWorker, register_serverless
from rollart_flow.resources.endpoint_proxy import EndpointProxy
from rollart_flow.rewards import Score
from rollart_flow.types import Trajectory
from tests.builders import TRAJECTORY

HERE = "tests.rewards.functions"


class ServerlessReward(RewardWorker):
    """Stateless rewards at endpoints."""

    reward_proxy: EndpointProxy
    failing_proxy: EndpointProxy

    @register_serverless(url=f"local://{HERE}:turns")
    def compute_rewards(self, trajectory: Trajectory) -> Score:
        """How many turns it took."""
        raise AssertionError("the endpoint runs in place of this")

    @register_serverless(url=f"local://{HERE}:raises")
    def fail(self, trajectory: Trajectory) -> Score:
        """An error of the function."""
        raise AssertionError

    @register_serverless(url=f"local://{HERE}:turns", attribute="reward_proxy")
    async def twice(self, trajectory: Trajectory, times: int) -> float:
        """As in the listing: the method runs here, and what it asks runs there."""
        score = await self.reward_proxy(trajectory)
        assert isinstance(score, float)
        return times * score

    @register_serverless(url=f"local://{HERE}:raises", attribute="failing_proxy")
    def failing(self, trajectory: Trajectory) -> Score:
        """An error of the function, in a method that waits for the reference."""
        return ray.get(self.failing_proxy(trajectory))

    def again(self, trajectory: Trajectory) -> Score:
        """The same endpoint, after its proxy was closed."""
        self.reward_proxy.close()
        return ray.get(self.reward_proxy(trajectory))


def test_a_method_runs_at_its_endpoint_and_needs_no_worker() -> None:
    cluster = Cluster([], ServerlessReward)
    longer = replace(TRAJECTORY, trajectory_id="u", turns=TRAJECTORY.turns * 3)
    turns = len(TRAJECTORY.turns)
    assert cluster.compute_rewards(TRAJECTORY) == turns
    assert cluster.compute_rewards([TRAJECTORY, longer]) == [turns, 3 * turns]
    assert asyncio.run(cluster.compute_rewards.aio(trajectory=longer)) == 3 * turns
    signature = inspect.signature(cluster.compute_rewards)
    assert list(signature.parameters) == ["trajectory"]
    assert cluster.compute_rewards.__doc__ == "How many turns it took."
    with pytest.raises(RewardFailedError, match="gold answer"):
        cluster.fail(TRAJECTORY)


def test_a_workers_own_method_finds_the_endpoint_under_the_attribute(shared_ray: None) -> None:
    cluster = Cluster([Placement("reward-cpu-0", "reward", "CPU")], ServerlessReward)
    turns = len(TRAJECTORY.turns)
    assert cluster.twice(TRAJECTORY, times=2) == 2 * turns
    with pytest.raises(RewardFailedError, match="gold answer"):
        cluster.failing(TRAJECTORY)
    assert cluster.again(TRAJECTORY) == [turns], "a closed proxy opens anew"
    cluster.shutdown()
