"""The end of a trajectory's way through a process: micro-batches of trajectories for the buffer.

The unit of meaning is the trajectory, the unit of transport is the micro-batch: it leaves when it
is full, when its oldest trajectory has waited long enough, or when no other attempt of the process
is running. It waits longer while the micro-batch before it is not durable yet, and on until one is
if two are under way, so that many processes that have a few trajectories each send few messages. If
the process dies, its attempts run again and their trajectories may be sent twice; the buffer stores
each trajectory once. The branches of an attempt are in one micro-batch.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

from rollart_flow.attempt_rows import rows_beside
from rollart_flow.errors import RowsLostError
from rollart_flow.resources import Remote
from rollart_flow.rows import to_ipc, trajectories_table
from rollart_flow.types import Trajectory

if TYPE_CHECKING:
    from rollart_flow.operators.buffer import BufferActor
    from rollart_flow.operators.buffer_writer import BufferWriterActor

ROWS = 64
"""Number of trajectories of a full micro-batch."""
WAIT_S = 0.01
"""Longest time that a trajectory waits for others while no micro-batch is under way [s]."""
BUSY_WAIT_S = 0.03
"""Longest time that a trajectory waits for others while one micro-batch is under way [s]."""


class RowSender:
    """Sends rows to the buffer or, if it has writers, to one of them in turn."""

    def __init__(
        self, buffer: "Remote[BufferActor]", writers: "Sequence[Remote[BufferWriterActor]]"
    ) -> None:
        self._buffer = buffer
        self._writers = random.sample(writers, len(writers))  # each process starts with another
        self._turns = cycle(self._writers)

    async def send(self, data: bytes, beside: Mapping[str, bytes] | None = None) -> None:
        """Return once rows and those of further tables (`attempt_rows`) are durable.

        Rows are given as Arrow IPC.
        """
        while True:
            rows = await next(self._turns).call.put.start(data) if self._writers else data
            try:
                await self._buffer.call.put.start(rows, beside)
            except RowsLostError:
                continue  # the writer was restarted without the rows
            return


class BufferSink:
    """Sends the trajectories of one process to the buffer."""

    def __init__(
        self, buffer: "Remote[BufferActor]", writers: "Sequence[Remote[BufferWriterActor]]" = ()
    ) -> None:
        self._sender = RowSender(buffer, writers)
        self._waiting: list[Trajectory] = []
        self._durable: asyncio.Future[None] | None = None
        self._told: list[asyncio.Future[None]] = []
        """One for each attempt of the next micro-batch; shielding the one above costs more."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        """Whether the next micro-batch leaves once none is under way."""
        self._sends: set[asyncio.Task[None]] = set()

    def put(self, branches: Sequence[Trajectory]) -> asyncio.Future[None]:
        """Add the branches of an attempt to the next micro-batch.

        The result is ready once they are durable.
        """
        loop = asyncio.get_running_loop()
        if self._durable is None:
            self._durable = loop.create_future()
            self._timer = loop.call_later(WAIT_S, self._due)
        told: asyncio.Future[None] = loop.create_future()
        self._told.append(told)
        self._waiting += branches
        if len(self._waiting) >= ROWS:
            self.flush()
        return told

    def flush(self) -> None:
        """Send the trajectories that wait for others, if there are any."""
        durable, self._durable = self._durable, None
        if durable is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_due = False
        told, self._told = self._told, []
        durable.add_done_callback(partial(_tell, told))
        trajectories, self._waiting = self._waiting, []
        send = asyncio.ensure_future(self._send(trajectories, durable))
        self._sends.add(send)
        send.add_done_callback(self._sent)

    def _due(self) -> None:
        self._is_due = True
        self._timer = asyncio.get_running_loop().call_later(BUSY_WAIT_S - WAIT_S, self._overdue)
        if not self._sends:
            self.flush()

    def _overdue(self) -> None:
        self._timer = None
        if len(self._sends) < 2:
            self.flush()

    def _sent(self, send: asyncio.Task[None]) -> None:
        self._sends.remove(send)
        if self._is_due and not send.cancelled():  # only the end of the process cancels it
            self.flush()

    async def _send(self, trajectories: list[Trajectory], durable: asyncio.Future[None]) -> None:
        try:
            beside = {table: to_ipc(rows) for table, rows in rows_beside(trajectories).items()}
            await self._sender.send(to_ipc(trajectories_table(trajectories)), beside or None)
        except Exception as error:  # noqa: BLE001  raised in each attempt that waits
            durable.set_exception(error)
        else:
            durable.set_result(None)


def _tell(told: Sequence[asyncio.Future[None]], durable: asyncio.Future[None]) -> None:
    """Tell the attempts of a micro-batch, unless they were cancelled, how it went."""
    failure = durable.exception()
    for each in told:
        if each.done():
            continue
        if failure is None:
            each.set_result(None)
        else:
            each.set_exception(failure)
            each.exception()  # retrieved here, in case that no attempt waits any more
