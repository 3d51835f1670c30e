"""RolloutWorker: runs many attempts' managers in one process and delivers their orders.

The invariant: an order that the scheduler has issued reaches its AttemptManager, whether it comes
before, during or after the permission; one for an attempt that is over is ignored. A
scheduler that was restarted is told of the attempts that run here, and these go on.
"""

import asyncio
from collections import defaultdict

from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.protocols import END, Admission, Clearance, Order
from rollart_flow.control.rollout.attempt_manager import AttemptManager
from rollart_flow.control.rollout.dispatch import FREE, Dispatch
from rollart_flow.errors import UnknownClientError
from rollart_flow.types import Trajectory


class RolloutWorker:
    """Runs attempts concurrently.

    Args:
        name: name for the scheduler, unique among all rollout workers of a run, including
            restarted ones.
        admission: the scheduler.
        dispatch: how the attempts that run here wait for one another; each manager is to be
            given the same.
    """

    def __init__(self, name: str, admission: Admission, *, dispatch: Dispatch = FREE) -> None:
        self.name = name
        self.dispatch = dispatch
        self._admission = admission
        self._managers: defaultdict[str, list[AttemptManager]] = defaultdict(list)
        self._listener: asyncio.Task[None] | None = None
        self._cursor = 0

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of the attempts that run here."""
        return tuple(self._managers)

    async def run(self, manager: AttemptManager) -> tuple[Trajectory, ...]:
        """Run an attempt to its end, under the scheduler's control, and return its branches.

        The method raises only errors of the scheduler's port, after which the attempt can be run
        again.
        """
        self._ensure_listener()
        trajectory_id = manager.assignment.trajectory_id
        doubles = self._managers[trajectory_id]
        doubles.append(manager)
        try:
            if self.dispatch.lockstep is None:
                return await manager.run()
            return await self.dispatch.lockstep.run(manager.run())
        finally:
            doubles.remove(manager)
            if not doubles:
                del self._managers[trajectory_id]

    def _ensure_listener(self) -> None:
        """Start the listener if none runs; raise the error of a failed listener once."""
        listener = self._listener
        if listener is not None and listener.done():
            self._listener = None
            listener.result()
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name=f"{self.name} listens")
            self._listener.add_done_callback(self._ended)

    def _ended(self, listener: asyncio.Task[None]) -> None:
        """Let no attempt wait for a clearance that cannot come."""
        if not listener.cancelled() and (error := listener.exception()) is not None:
            for doubles in self._managers.values():
                for manager in doubles:
                    manager.deafen(error)

    async def _listen(self) -> None:
        while True:
            try:
                with waiting(f"orders({self.name})"):
                    answer = await self._admission.orders(self.name, self._cursor)
            except UnknownClientError:
                attempts = [
                    self._managers[trajectory_id][0].state for trajectory_id in self.running
                ]
                answer = await self._admission.announce(self.name, attempts)
            if answer[0] == END:
                return
            self._cursor, orders = answer
            for order in orders:
                self._deliver(order)

    def _deliver(self, order: Order) -> None:
        """Clear or end an attempt, including a second run of it."""
        for manager in self._managers.get(order.trajectory_id, ()):
            if isinstance(order, Clearance):
                manager.clear()
            else:
                manager.cancel(order)

    async def close(self) -> None:
        """Stop listening; running attempts are not affected."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
