"""The boxes of a pool that nobody has yet: started for those who ask, and for those who will.

The invariants: no more boxes start than are asked for and expected; starts of a key that fail are
repeated after times that double; a warm box is handed out once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime
from typing import Any
from uuid import uuid4

from rollart_flow.errors import SandboxError, SettingsError
from rollart_flow.sandbox.base import KilledBy, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.environment_key import environment_key
from rollart_flow.sandbox.pool_boxes import FAILURE, BoxRecord, BoxUser, Create, PooledBox
from rollart_flow.sandbox.pool_demand import BoxDemand, BoxRequest, PoolSettings, outliving
from rollart_flow.text import one_line


class BoxStock:
    """The demand for boxes, and its supply.

    Args:
        create: starts a box.
        settings: names and bounds.
        now: returns the present UTC time.
        hand_out: gives a warm box to a request.
        give_up: refuses a request with an error.
        report: receives the record of each box that has ended.
    """

    def __init__(
        self,
        create: Create,
        settings: PoolSettings,
        now: Callable[[], datetime],
        hand_out: Callable[[PooledBox, BoxRequest], Coroutine[Any, Any, None]],
        give_up: Callable[[BoxRequest, Exception], None],
        report: Callable[[BoxRecord], None],
    ) -> None:
        self._create = create
        self._settings = settings
        self._now = now
        self._hand_out = hand_out
        self._give_up = give_up
        self._report = report
        self._demands: dict[str, BoxDemand] = {}
        self.requests: list[BoxRequest] = []
        """Requests that wait, the oldest first."""
        self.boxes: set[PooledBox] = set()
        """Every box that has not ended."""
        self._ending: set[PooledBox] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ages: dict[PooledBox, asyncio.TimerHandle] = {}
        self.closed = False

    def demand(
        self, spec: SandboxSpec, snapshot: SandboxSnapshot | None, user: BoxUser
    ) -> BoxDemand:
        """Return the demand for boxes that begin with a spec and files, and outlive an attempt."""
        spec = outliving(spec, user.lease_s)
        key = environment_key(spec, snapshot, variant=self._settings.variant)
        demand = self._demands.setdefault(key, BoxDemand(key, spec, snapshot))
        demand.domain = user.domain
        return demand

    def unexpect(self, session: str, key: str) -> None:
        """Take back that an attempt will ask for a box of a key."""
        if key in self._demands:
            self._demands[key].expected.discard(session)

    def ask(self, request: BoxRequest, *, first: bool = False) -> None:
        """Add a request, by default behind all others."""
        request.demand = self._demands.setdefault(request.demand.key, request.demand)
        request.demand.asked += 1
        self.requests.insert(0 if first else len(self.requests), request)

    def drop(self, request: BoxRequest) -> None:
        """Remove a request that waits no more; one that does not wait is ignored."""
        if request in self.requests:
            self.requests.remove(request)
            request.demand.asked -= 1

    def balance(self) -> None:
        """Hand out warm boxes, start those that lack, and let surplus ones end after a while."""
        if self.closed:
            return
        for request in list(self.requests):
            if warm := request.demand.warm:
                self.drop(request)
                self.do(self._hand_out(self._taken(warm.popleft()), request))
        for demand in self._by_urgency():
            self._start_missing(demand)
        for demand in list(self._demands.values()):
            demand.retire(self._settings.idle_s, self._retire)
            if demand.idle:
                demand.close()
                del self._demands[demand.key]

    def do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin work of the pool that `close` waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def end(self, box: PooledBox, killed_by: str = "") -> asyncio.Task[None]:
        """End a box, and report its record afterwards; the task is done then."""
        box.record.killed_by = killed_by
        self._ending.add(box)
        return self.do(self._end(box))

    def put_back(self, box: PooledBox) -> None:
        """Return a warm box that nobody got."""
        demand = self._demands.get(box.key)
        if demand is None or self.closed:
            self.end(box)
        else:
            self._warm(demand, box)

    async def close(self) -> None:
        """End all boxes that nobody has; return once nothing of any box is left."""
        self.closed = True
        for start in self._starts:
            start.cancel()
        for demand in self._demands.values():
            demand.close()
            for box in demand.warm:
                self.end(self._taken(box))
            demand.warm.clear()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _by_urgency(self) -> Iterator[BoxDemand]:
        yield from [request.demand for request in self.requests]
        yield from list(self._demands.values())

    def _start_missing(self, demand: BoxDemand) -> None:
        while demand.lacking and len(self._starts) < self._settings.starts_at_once:
            if demand.retry_at > asyncio.get_running_loop().time():
                demand.retry(self.balance)
                return
            urgent = demand.asked > demand.supply
            if not self._has_room(demand):
                if urgent:
                    self._make_room(demand)
                return
            demand.starting += 1
            box = PooledBox(demand.key, self._record(demand, prewarmed=not urgent), self._now)
            self.boxes.add(box)
            start = self.do(self._start(demand, box))
            self._starts.add(start)
            start.add_done_callback(self._started)

    def _started(self, start: asyncio.Task[None]) -> None:
        self._starts.discard(start)
        self.balance()

    def _record(self, demand: BoxDemand, *, prewarmed: bool) -> BoxRecord:
        return BoxRecord(
            sandbox_id=f"{self._settings.name}-{uuid4().hex[:12]}",
            variant=self._settings.variant,
            node=self._settings.node,
            pool=self._settings.name,
            environment_key=demand.key,
            domain=demand.domain,
            created_at=self._now(),
            prewarmed=prewarmed,
        )

    def _has_room(self, demand: BoxDemand) -> bool:
        most = self._settings.maximum
        if most is None or len(self.boxes) < most:
            return True
        further = sum(each.further for each in self.requests if each.demand is demand)
        return demand.supply < further

    def _make_room(self, demand: BoxDemand) -> None:
        """End a warm box of another key, a surplus one if there is any."""
        if len(self._ending) >= len(self.requests):
            return  # there will be room
        others = [each for each in self._demands.values() if each.warm and each is not demand]
        if others:
            self.end(self._taken(max(others, key=lambda each: each.surplus).warm.pop()))

    async def _start(self, demand: BoxDemand, box: PooledBox) -> None:
        failure: BaseException | None = None
        try:
            await box.start(self._create, demand.spec, demand.snapshot, self._settings.start_s)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  whoever waits gets it
            failure = error
        demand.starting -= 1
        if failure is None:
            demand.failures = 0
            self._warm(demand, box) if not self.closed else self.end(box)
        elif isinstance(failure, Exception):
            box.record.error = one_line(failure)
            self.end(box, FAILURE)
            self._failed(demand, failure)
        else:
            self.end(box)

    def _failed(self, demand: BoxDemand, error: Exception) -> None:
        """Let the next start wait; refuse the requests that have waited for too many of them."""
        settings = self._settings
        wrong = isinstance(error, SettingsError)
        if not isinstance(error, SandboxError | SettingsError):
            error = SandboxError(f"no sandbox can be started: {one_line(error)}")
        demand.back_off(settings.backoff_s, settings.longest_backoff_s)
        if wrong or demand.failures >= settings.start_tries:
            demand.expected.clear()  # an attempt that asks has it tried again
        for request in [each for each in self.requests if each.demand is demand]:
            request.failures += 1
            if wrong or request.failures >= settings.start_tries:
                self.drop(request)
                self._give_up(request, error)

    def _warm(self, demand: BoxDemand, box: PooledBox) -> None:
        half = asyncio.get_running_loop().call_later(
            demand.spec.limits.lifetime_s / 2, self._outlive, box
        )
        self._ages[box] = half
        demand.warm.append(box)

    def _taken(self, box: PooledBox) -> PooledBox:
        """Return a box that is warm no more."""
        self._ages.pop(box).cancel()
        return box

    def _outlive(self, box: PooledBox) -> None:
        """Replace a warm box that has half of its lifetime left."""
        self._demands[box.key].warm.remove(box)
        self.end(self._taken(box), KilledBy.TIME)
        self.balance()

    def _retire(self, demand: BoxDemand) -> None:
        """End boxes that nobody has asked for, down to the minimum."""
        while demand.surplus and demand.warm:
            if len(self.boxes) - len(self._ending) <= self._settings.minimum:
                return
            self.end(self._taken(demand.warm.popleft()))

    async def _end(self, box: PooledBox) -> None:
        await box.end()
        self._ending.discard(box)
        self.boxes.discard(box)
        self._report(box.record)
        self.balance()
