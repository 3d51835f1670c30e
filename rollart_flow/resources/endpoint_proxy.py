"""`EndpointProxy`: a serverless endpoint as an attribute of a worker (ROLLART's Listing 1)."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rollart_flow.resources.declarations import register
from rollart_flow.resources.handles import Remote, start_actor
from rollart_flow.rewards.base import Score
from rollart_flow.serverless import ServerlessReward
from rollart_flow.types import Outcome, Sampling, Split, Trajectory

if TYPE_CHECKING:
    import ray

_CONCURRENT_CALLS = 1000
"""Concurrent calls in one proxy; the endpoint's own policy limits them further."""

_EPOCH = datetime.fromtimestamp(0, UTC)
"""Time of a prompt's trajectory: fixed, so that equal prompts are equal messages."""


class EndpointProxy:
    """A function behind an address; a call returns a Ray reference to its result at once.

    `ray.get(proxy(prompt))` waits for the result, and `await proxy(prompt)` does so in an event
    loop. Calls run in an actor that holds the connections. It starts with the first call and ends
    with the worker.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._caller: Remote[_EndpointCaller] | None = None

    def __call__(self, subject: Trajectory | str) -> ray.ObjectRef[Score]:
        """Start a call and return a reference to its score.

        Args:
            subject: a trajectory, or a prompt. A prompt reaches the endpoint's function as a
                trajectory without tokens whose `task` is `{"prompt": prompt}`.

        Returns:
            Reference to the reward, or to the reward and its named parts. `ray.get` raises the
            errors of `ServerlessReward`.
        """
        if self._caller is None:
            options = {"num_cpus": 0, "max_concurrency": _CONCURRENT_CALLS}
            self._caller = start_actor(_EndpointCaller, **options)(self._url)
        trajectory = subject if isinstance(subject, Trajectory) else prompt_trajectory(subject)
        return self._caller.call.score.start(trajectory)

    def close(self) -> None:
        """End the calls in flight and release the connections; a later call opens new ones."""
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.kill()


class _EndpointCaller:
    """Actor that calls one endpoint."""

    def __init__(self, url: str) -> None:
        self._function = ServerlessReward(url)

    @register("rank_zero")
    async def score(self, trajectory: Trajectory) -> Score:
        """Return the endpoint's score of a trajectory."""
        return await self._function(trajectory)


def prompt_trajectory(prompt: str) -> Trajectory:
    """Return the trajectory as which a prompt is sent; equal prompts give equal trajectories."""
    task = json.dumps({"prompt": prompt})
    name = f"prompt-{hashlib.sha256(task.encode()).hexdigest()[:24]}"
    return Trajectory(
        trajectory_id=name,
        episode_id=name,
        group_id=name,
        task_id=name,
        domain="prompt",
        attempt=0,
        outcome=Outcome.COMPLETED,
        task=task,
        sampling=Sampling(),
        split=Split.TRAIN,
        env_seed=0,
        env_version="",
        created_at=_EPOCH,
        finished_at=_EPOCH,
        reset_s=0.0,
    )
