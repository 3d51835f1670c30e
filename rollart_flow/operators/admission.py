"""The scheduler, in the coordinator's process, as a process of rollout workers sees it."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rollart_flow.control.protocols import Order, Permission, RunningAttempt
from rollart_flow.resources import Remote
from rollart_flow.types import Assignment

if TYPE_CHECKING:
    from rollart_flow.operators.coordinator import CoordinatorActor


_Answer = asyncio.Future[Permission]


class AdmissionClient:
    """The scheduler as one rollout worker sees it; implements `control.protocols.Admission`."""

    def __init__(self, coordinator: "Remote[CoordinatorActor]", worker: str) -> None:
        self._coordinator = coordinator
        self._worker = worker
        self._asked: dict[str, list[_Answer]] = {}
        """Awaited permissions, by attempt: two of an attempt that runs twice."""
        self._started: list[tuple[str, int]] = []
        self._sends: set[asyncio.Task[None]] = set()
        self._told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told.set_result(None)

    async def admit(self, source: str, index: int, most: int = 1) -> tuple[Assignment, ...]:
        return await self._coordinator.call.admit.aio(source, index, most)

    async def permit(self, trajectory_id: str, worker: str) -> Permission:
        self._send_soon()
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._asked.setdefault(trajectory_id, []).append(answer)
        return await answer

    def started(self, trajectory_id: str, version: int) -> asyncio.Future[None]:
        self._send_soon()
        self._started.append((trajectory_id, version))
        return self._told

    async def orders(self, worker: str, after: int) -> tuple[int, tuple[Order, ...]]:
        return await self._coordinator.call.orders.aio(worker, after)

    async def announce(
        self, worker: str, running: Sequence[RunningAttempt]
    ) -> tuple[int, tuple[Order, ...]]:
        return await self._coordinator.call.announce.aio(worker, running)

    async def adopt(self, source: str, blocks: Sequence[Sequence[str]]) -> None:
        await self._coordinator.call.adopt.aio(source, blocks)

    def _send_soon(self) -> None:
        """Send the messages of this turn of the loop when the turn has ended."""
        if not self._asked and not self._started:
            send = asyncio.ensure_future(self._send())
            self._sends.add(send)
            send.add_done_callback(self._sends.discard)

    async def _send(self) -> None:
        asked, self._asked = self._asked, {}
        started, self._started = self._started, []
        try:
            answers = await self._coordinator.call.permit.start(self._worker, [*asked], started)
        except Exception as error:  # noqa: BLE001  raised in each attempt that waits
            for answer in _waiting(asked.values()):
                answer.set_exception(error)
            return
        for waiters, permission in zip(asked.values(), answers, strict=True):
            for answer in _waiting([waiters]):
                answer.set_result(permission)


def _waiting(waiters: Iterable[Sequence[_Answer]]) -> Iterator[_Answer]:
    """Yield the answers that an attempt still waits for."""
    return (answer for each in waiters for answer in each if not answer.done())
