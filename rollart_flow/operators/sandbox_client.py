"""The pools of a run, as a process that drives environments sees them.

An attempt has its boxes in one pool, that of its domain with the fewest attempts of this process.
The pool is told of an attempt before the attempt starts, so that its first box is ready.

Invariant: what an attempt holds ends with it, however it ends, and with this process.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rollart_flow.envs.base import Domain
from rollart_flow.errors import SandboxError, TaskQuarantinedError
from rollart_flow.resources import Remote, TypedCluster, WorkerHandle
from rollart_flow.resources.nodes import node_id
from rollart_flow.resources.reasons import deaths, failures, reason
from rollart_flow.sandbox.box_calls import Message, error_answer, framed, unframed
from rollart_flow.sandbox.owner import owner_label
from rollart_flow.sandbox.pool_boxes import BoxUser, FirstBox
from rollart_flow.text import one_line
from rollart_flow.types import Assignment, AttemptLimits

if TYPE_CHECKING:
    from rollart_flow.operators.coordinator import CoordinatorActor
    from rollart_flow.operators.sandboxes import SandboxWorker

_log = logging.getLogger(__name__)

RENEW_S = 8.0
"""Time between two signs of life to the pools [s]; a pool waits several times as long."""
_TRIES, _AGAIN_S = 4, 0.5
"""How often a box is asked for whose pool has died, and the first time in between [s]."""


class SandboxClient:
    """Client of the pools of a run.

    Args:
        pools: the workers with the pools.
        holder: name of this process, unique in the run.
        domains: domains by name.
        limits: limits of an attempt, by domain.
        coordinator: learns of tasks whose boxes fail; None for evaluation, which has fixed tasks.
    """

    def __init__(
        self,
        pools: TypedCluster["SandboxWorker"],
        holder: str,
        domains: Mapping[str, Domain],
        limits: Mapping[str, AttemptLimits],
        coordinator: Remote["CoordinatorActor"] | None = None,
    ) -> None:
        self._pools = list(pools.workers)
        self.holder = holder
        self.node = node_id()
        self._domains = domains
        self._limits = limits
        self._coordinator = coordinator
        self._attempts: Counter[str] = Counter()
        """Attempts of this process, by pool."""
        self._expected: dict[str, list[AttemptBoxes]] = {}
        """Attempts that were announced and have not started, by trajectory id."""
        self._announced: dict[str, list[tuple[BoxUser, FirstBox]]] = {}
        self._announcing: set[asyncio.Task[None]] = set()
        self._released: dict[str, list[str]] = {}
        self._quarantined: set[str] = set()
        self._renewal: asyncio.Task[None] | None = None

    def expect(self, assignment: Assignment) -> "AttemptBoxes | None":
        """Announce an attempt that will open a box; None if its domain opens none.

        The caller releases the result when the attempt is over, whether or not it started.
        """
        domain = self._domains[assignment.task.domain]
        if domain.environment.inline or type(domain).box is Domain.box:
            return None
        attempt = self._made(assignment)
        self._expected.setdefault(assignment.trajectory_id, []).append(attempt)
        announcing = asyncio.create_task(self._announce(attempt, domain, assignment.task.payload))
        self._announcing.add(announcing)
        announcing.add_done_callback(self._announcing.discard)
        return attempt

    async def _announce(self, attempt: "AttemptBoxes", domain: Domain, payload: str) -> None:
        """Tell the pool what an attempt opens first, unless it is over by then.

        An error of the domain's code is logged only: the environment will tell what is wrong.
        """
        try:
            first = await asyncio.to_thread(domain.box, payload)
        except Exception as error:  # noqa: BLE001  the user's code ends here
            _log.warning("%s.box: %s", type(domain).__name__, one_line(error))
            return
        if first is not None and not attempt.over:
            self._send_soon()
            self._announced.setdefault(attempt.pool.name, []).append((attempt.user, first))

    def attempt(self, assignment: Assignment) -> "AttemptBoxes":
        """Return the boxes of an attempt that starts."""
        announced = self._expected.get(assignment.trajectory_id)
        if not announced:
            return self._made(assignment)
        attempt = announced.pop(0)
        if not announced:
            del self._expected[assignment.trajectory_id]
        return attempt

    def release(self, attempt: "AttemptBoxes") -> None:
        """End what an attempt holds; does not wait."""
        self._attempts[attempt.pool.name] -= 1
        if attempt in (announced := self._expected.get(attempt.user.trajectory_id, [])):
            announced.remove(attempt)
            if not announced:
                del self._expected[attempt.user.trajectory_id]
        self._send_soon()
        self._released.setdefault(attempt.pool.name, []).append(attempt.user.session)

    def quarantine(self, task_id: str, why: str) -> None:
        """Tell the scheduler that boxes of a task fail, once."""
        if self._coordinator is not None and task_id not in self._quarantined:
            self._quarantined.add(task_id)
            self._coordinator.call.quarantine.start(task_id, why)

    def replacement(
        self, pool: "WorkerHandle[SandboxWorker]", domain: str
    ) -> "WorkerHandle[SandboxWorker]":
        """Use a pool no more that died for good; return one for an attempt that had it.

        The last pool is returned itself: its calls go on to fail.
        """
        if pool in self._pools and len(self._pools) > 1:
            self._pools.remove(pool)
        other = min(self._pools_of(domain), key=lambda each: self._attempts[each.name])
        self._attempts[pool.name] -= 1
        self._attempts[other.name] += 1
        return other

    async def close(self) -> None:
        """Announce nothing more, and give no more signs of life."""
        self._send()
        ending = [*self._announcing, *(() if self._renewal is None else (self._renewal,))]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def _made(self, assignment: Assignment) -> "AttemptBoxes":
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renew())
        name = assignment.task.domain
        pool = min(self._pools_of(name), key=lambda each: self._attempts[each.name])
        self._attempts[pool.name] += 1
        user = BoxUser(
            session=f"{assignment.trajectory_id}@{uuid4().hex[:12]}",
            trajectory_id=assignment.trajectory_id,
            task_id=assignment.task.task_id,
            domain=name,
            holder=self.holder,
            lease_s=self._limits[name].trajectory_timeout_s,
        )
        return AttemptBoxes(self, pool, user)

    def _pools_of(self, domain: str) -> Sequence["WorkerHandle[SandboxWorker]"]:
        """Return the pools that were placed for a domain, or else those for all others."""
        for wanted in (domain, "default"):
            asked = [p for p in self._pools
                     if any(each.domain == wanted for each in p.placement.requests)]  # fmt: skip
            if asked:
                return asked
        return self._pools

    def _send_soon(self) -> None:
        """Send the messages of this turn of the loop when the turn has ended."""
        if not self._announced and not self._released:
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        announced, self._announced = self._announced, {}
        released, self._released = self._released, {}
        for pool in self._pools:
            if pool.name in announced:
                pool.call.expect.start(announced[pool.name])
            if pool.name in released:
                pool.call.release.start(released[pool.name])

    async def _renew(self) -> None:
        label = owner_label()
        while True:
            for pool in self._pools:
                pool.call.renew.start(self.holder, self.node, label)
            await asyncio.sleep(RENEW_S)


class AttemptBoxes:
    """The boxes of one attempt; implements `sandbox.box_calls.BoxCalls`.

    Args:
        client: client of this process.
        pool: the pool with the boxes.
        user: the attempt.
    """

    def __init__(
        self, client: SandboxClient, pool: "WorkerHandle[SandboxWorker]", user: BoxUser
    ) -> None:
        self._client = client
        self.pool = pool
        self.user = user
        self._fields = asdict(user)
        self._over = False

    async def __call__(self, call: Any, data: bytes, /) -> tuple[Message, bytes]:
        """Answer a call. Raises only if it is cancelled."""
        answer, found = await self._answer(call, data)
        if answer.get("error", [""])[0] == TaskQuarantinedError.__name__:
            self._client.quarantine(self.user.task_id, answer["error"][1])
        return answer, found

    async def _answer(self, call: Message, data: bytes) -> tuple[Message, bytes]:
        tries = _TRIES if call["call"] == "open" else 1
        frame = framed({"user": self._fields, "node": self._client.node, "call": call}, data)
        for number in range(tries):
            if self._over:
                break
            try:
                return unframed(await self.pool.call.answer.start(frame))
            except failures() as error:
                said = f"the sandbox has ended: its pool {self.pool.name} is gone: {reason(error)}"
                if isinstance(error, deaths()):
                    self.pool = self._client.replacement(self.pool, self.user.domain)
                if number == tries - 1:
                    return error_answer(SandboxError(said)), b""
            await asyncio.sleep(_AGAIN_S * 2**number)
        return error_answer(SandboxError("the sandbox has ended: the attempt is over")), b""

    @property
    def over(self) -> bool:
        """Whether the attempt has been released."""
        return self._over

    def release(self) -> None:
        """End what the attempt holds, and refuse later calls. Does not wait; may be repeated."""
        if not self._over:
            self._over = True
            self._client.release(self)
