"""Replay of a captured agent's program: it runs again, and gets what was sampled then.

The program runs in a box as during rollout, with the gateway, and without an engine: a request
whose prompt is that of a stored call gets the stored tokens. The first request with another prompt
is the first difference, and ends the program. What the program leaves is not compared.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rollart_flow.control.plane import InferenceClients, RolloutPlane
from rollart_flow.control.protocols import Cancellation
from rollart_flow.envs.base import Domain
from rollart_flow.envs.process import WarmProcesses
from rollart_flow.errors import SettingsError
from rollart_flow.harness.harness import Harness
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.version_zero import load_codec
from rollart_flow.operators.agents import Agents
from rollart_flow.replay.exchanges import CallDifference, SessionReplay, token_difference
from rollart_flow.replay.stored_attempts import read_attempt
from rollart_flow.replay.stored_engine import StoredGeneration, stored_generations
from rollart_flow.replay.trajectory import domain_of
from rollart_flow.runner.retrain import stored_pipeline
from rollart_flow.store import Run
from rollart_flow.store.cache import local_file
from rollart_flow.store.layout import pipeline_uri, policy_uri
from rollart_flow.types import (
    Assignment,
    AttemptLimits,
    Chunk,
    FinishReason,
    GenerationRequest,
    Outcome,
    Reason,
    Task,
    Trajectory,
)
from rollart_flow.weights.folder_store import local_path


class MatchingEngine:
    """An inference worker that knows what was sampled for some prompts; samples nothing.

    Args:
        generations: what was sampled.
        codec: spells the tokens of a difference.
        ended: called once, at the first request that the recording has not.
    """

    worker, hardware, stands_for = "stored", "stored", frozenset({"stored"})

    def __init__(
        self, generations: Sequence[StoredGeneration], codec: TextCodec, ended: Callable[[], None]
    ) -> None:
        self._left: dict[Sequence[int], deque[StoredGeneration]] = {}
        for each in generations:
            self._left.setdefault(each.prompt_ids, deque()).append(each)
        self._codec = codec
        self._ended = ended
        self.served = 0
        self.difference: CallDifference | None = None
        self._over = False

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        found = self._left.get(request.prompt_ids)
        if self._over or not found or found[0].finish_reason is FinishReason.ABORT:
            self._end(None if found or self._over else self._first(request.prompt_ids))
            yield Chunk(request.request_id, 0, (), (), (), FinishReason.ABORT)
            return
        stored = found.popleft()
        if not found:
            del self._left[request.prompt_ids]
        self.served += 1
        kept = tuple((token,) for token in stored.token_ids) if request.sampling.truncates else ()
        yield Chunk(
            request.request_id, 0, stored.token_ids, stored.logprobs, stored.versions,
            stored.finish_reason, kept,
        )  # fmt: skip

    async def abort(self, request_id: str) -> None: ...

    @property
    def left(self) -> int | None:
        """Number of the first stored call that no request has matched; None if all were."""
        waiting = (
            each.call.number
            for some in self._left.values()
            for each in some
            if each.finish_reason is not FinishReason.ABORT
        )
        return min(waiting, default=None)

    def _end(self, difference: CallDifference | None) -> None:
        if not self._over:
            self._over, self.difference = True, difference
            self._ended()

    def _first(self, prompt_ids: Sequence[int]) -> CallDifference:
        """Return the difference to the stored prompt that is most like this one."""
        if not self._left:
            said = f"one more call than recorded, after a prompt of {len(prompt_ids)} tokens"
            return CallDifference(self.served, "call", said)
        nearest = max(self._left, key=lambda each: (_common(each, prompt_ids), -len(each)))
        number = self._left[nearest][0].call.number
        said = token_difference(nearest, prompt_ids, self._codec.decode)
        return CallDifference(number, "prompt", said)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


async def run_program_again(
    branches: Sequence[Trajectory],
    domain: Domain,
    agent: Harness,
    limits: AttemptLimits,
    codec: TextCodec,
    *,
    source: Path | None = None,
) -> SessionReplay:
    """Run the program of an attempt again, until it ends or does something else.

    Args:
        branches: rows of the attempt, the first of which has its calls.
        domain: domain of the attempt.
        agent: the program.
        limits: limits of the attempt.
        codec: codec of the policy.
        source: pipeline file, for a domain that cannot be imported by name.

    Raises:
        SettingsError: the program is not installed on this machine.
    """
    first, generations = branches[0], stored_generations(branches)
    loop = asyncio.get_running_loop()
    began = datetime.now(UTC) - timedelta(seconds=loop.time())
    cancelled = Cancellation(first.trajectory_id, Outcome.CANCELLED, Reason.RUN_STOPPED)
    engine = MatchingEngine([*generations.values()], codec, lambda: manager.cancel(cancelled))
    plane = RolloutPlane(
        "replay", InferenceClients([engine]), codec,
        lambda seconds: began + timedelta(seconds=seconds), lambda event: None,
    )  # fmt: skip
    processes = WarmProcesses(1)
    name = domain.name
    agents = Agents({name: agent}, {name: domain}, {name: limits}, plane, codec, processes, source)
    try:
        await agents.start()
        manager = agents.manager(_assignment(first))
        rows = await plane.run(manager)
    finally:
        await plane.close()
        await agents.close()
        await processes.close()
    difference = engine.difference or _unmatched(engine, rows)
    return SessionReplay(first.trajectory_id, len(generations), engine.served, difference)


def _unmatched(engine: MatchingEngine, rows: Sequence[Trajectory]) -> CallDifference | None:
    """Return the difference of a program that made fewer calls than before."""
    left = engine.left
    if left is None:
        return None
    end = rows[0].error or f"it ended, {rows[0].outcome}"
    return CallDifference(left, "call", f"recorded, but the program did not make it now: {end}")


def _assignment(first: Trajectory) -> Assignment:
    task = Task(first.task_id, first.domain, first.task)
    return Assignment(
        first.trajectory_id, first.group_id, task, first.attempt, first.env_seed, first.sampling,
        first.split,
    )  # fmt: skip


def replay_program(run_uri: str, trajectory_id: str) -> SessionReplay:
    """Run the program of a captured attempt again in a box; see the module.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: there is no such trajectory, it is none of a program that the run's pipeline
            names, or the program is not installed.
    """
    run = Run(run_uri)
    branches, trajectory = read_attempt(run, trajectory_id)
    pipeline = stored_pipeline(run)
    domain, node = domain_of(pipeline, trajectory)
    agent = node.agent_in(domain.name)
    if branches[0].exchanges is None or agent is None:
        raise SettingsError(f"trajectory {trajectory_id!r} is not of a program that a box can run")
    codec = load_codec(local_path(policy_uri(run.uri)))
    limits, source = node.attempt_limits(domain, pipeline.policy), local_file(pipeline_uri(run.uri))
    again = run_program_again(branches, domain, agent, limits, codec, source=source)
    with ThreadPoolExecutor(1) as thread:  # the caller may have a running loop (a notebook)
        return thread.submit(asyncio.run, again).result()
