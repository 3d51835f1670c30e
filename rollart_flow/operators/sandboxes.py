"""`SandboxWorker`: a pool of boxes as a worker, for the environments of all rollout processes.

The worker tells the buffer of each box that has ended, in a row of the table `sandboxes`; the rows
of about a second go together. It sweeps what a dead process left of its boxes before it makes its
own.

Invariant: a box lives no longer than this worker. A worker that Ray starts again knows none of the
boxes of the former process; calls of these fail, and their attempts with them.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import SettingsError
from rollart_flow.resources import Placement, Remote, Worker, register
from rollart_flow.resources.blocking import report_waits
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.resources.image_peers import share_images
from rollart_flow.resources.nodes import node_id, restarted
from rollart_flow.rows import to_ipc
from rollart_flow.sandbox.base import SandboxSnapshot
from rollart_flow.sandbox.box_calls import framed, unframed
from rollart_flow.sandbox.owner import is_owned, name_owner
from rollart_flow.sandbox.pool import SandboxPool
from rollart_flow.sandbox.pool_boxes import BoxRecord, BoxUser, FirstBox
from rollart_flow.sandbox.pool_demand import PoolSettings
from rollart_flow.sandbox.pool_socket import PoolSocket, sweep_sockets
from rollart_flow.sandbox.registry import SANDBOXES
from rollart_flow.schema import to_table
from rollart_flow.timeouts import timeout
from rollart_flow.types import Event, EventKind, Reason

if TYPE_CHECKING:
    from rollart_flow.operators.buffer import BufferActor

_log = logging.getLogger(__name__)

_ROWS_S = 1.0
"""Time that the row of a box waits for others [s]."""


class SandboxWorker(Worker):
    """A worker that makes boxes on its node and leases them to attempts.

    Args:
        placement: place of the worker.
        run: address of the run.
        settings: bounds of the pool; its name and node are those of the worker.
        buffer: receives the rows and events.

    Raises:
        SettingsError: this node cannot make such boxes.
    """

    role = "sandbox"

    def __init__(
        self,
        placement: Placement,
        *,
        run: str,
        settings: PoolSettings,
        buffer: Remote["BufferActor"],
    ) -> None:
        super().__init__(placement)
        report_waits(run, placement.worker)
        variant = SANDBOXES.load(settings.variant)
        if problem := variant.problem():
            raise SettingsError(f"rollout.sandbox={settings.variant!r}: {problem}")
        name_owner(run, placement.worker)
        swept = variant.sweep()
        if swept:
            _log.warning("%d sandboxes of processes that died were swept", swept)
        self._images = share_images()
        self._rows = BoxRows(buffer)
        if restarted():
            self._rows.report_crash(placement.worker, swept)
        settings = replace(settings, name=placement.worker, node=node_id())
        now = partial(datetime.now, UTC)
        self._pool = SandboxPool(variant.create, settings, self._rows.add, now)
        sweep_sockets()
        self._socket = PoolSocket(self._pool)
        self._watched: dict[str, int] = {}
        """Descriptors of the holders that are processes of this node, by name."""
        freeze_heap()

    @register()
    async def expect(self, attempts: Sequence[tuple[BoxUser, FirstBox]]) -> None:
        """Learn which attempts will ask for which boxes."""
        for user, first in attempts:
            if isinstance(first, SandboxSnapshot):
                self._pool.expect(user, first.spec, first)
            else:
                self._pool.expect(user, first)

    @register()
    async def answer(self, frame: bytes) -> bytes:
        """Answer a call of an attempt's box; see `SandboxPool.answer`.

        Args:
            frame: {"user": fields of a `BoxUser`, "node": node of the caller, "call": the call},
                and the bytes of the call (`box_calls.framed`). An `open` that says "direct" is
                answered with the offer of a line (`PoolLine`) if it comes from this node.
        """
        message, data = unframed(frame)
        user, call = BoxUser(**message["user"]), message["call"]
        answer, found = await self._pool.answer(user, call, data)
        if call.get("direct") and "value" in answer and message["node"] == node_id():
            answer = {"value": await self._socket.offer(user.session)}
        return framed(answer, found)

    @register()
    async def release(self, sessions: Sequence[str]) -> None:
        """End all boxes of attempts, and what they wait for."""
        for session in sessions:
            self._pool.release(session)

    @register()
    async def renew(self, holder: str, node: str, label: str) -> None:
        """Learn that a process lives that holds boxes or will.

        A process of this node is watched: what it holds ends with it.

        Args:
            holder: name of the process.
            node: its node.
            label: its label (`sandbox.owner`).
        """
        self._pool.renew(holder)
        pid = int(label.partition("-")[0])
        if node == node_id() and holder not in self._watched and pid != os.getpid():
            self._watch(holder, pid, label)

    def _watch(self, holder: str, pid: int, label: str) -> None:
        try:
            watched = os.pidfd_open(pid)
        except OSError:  # it is gone, or in another process namespace: its signs of life tell
            return
        if not is_owned(label):
            os.close(watched)
            return
        self._watched[holder] = watched
        asyncio.get_running_loop().add_reader(watched, self._holder_ended, holder)

    def _holder_ended(self, holder: str) -> None:
        watched = self._watched.pop(holder)
        asyncio.get_running_loop().remove_reader(watched)
        os.close(watched)
        self._pool.lose(holder)

    async def end(self) -> None:
        """Leave nothing behind where the worker is an object of a process that goes on."""
        await self.drain()

    @register()
    async def drain(self) -> None:
        """End all boxes; return once nothing of them is left and their rows are durable."""
        for holder in list(self._watched):
            self._holder_ended(holder)
        await self._socket.close()
        await self._pool.close()
        await self._rows.close()


class BoxRows:
    """The rows of boxes that have ended, on their way to the buffer."""

    def __init__(self, buffer: Remote["BufferActor"]) -> None:
        self._buffer = buffer
        self._records: list[BoxRecord] = []
        self._sending: asyncio.Task[None] | None = None
        self._last = asyncio.Event()

    def add(self, record: BoxRecord) -> None:
        """Send a row with others."""
        self._records.append(record)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_later())
            self._sending.add_done_callback(self._sent)

    def report_crash(self, worker: str, swept: int) -> None:
        """Report that this process replaces one that died."""
        detail: dict[str, Any] = {"restarted": "alone", "swept": swept}
        event = Event(EventKind.CRASH, worker, reason=Reason.WORKER_LOST, detail=detail)
        self._buffer.call.report.start([(datetime.now(UTC), event)])

    async def close(self) -> None:
        """Return once all rows are durable, or lost; no row follows."""
        self._last.set()
        if self._sending is not None:
            await asyncio.wait((self._sending,))

    async def _send_later(self) -> None:
        with suppress(TimeoutError):
            async with timeout(_ROWS_S):
                await self._last.wait()
        while self._records:
            await self._send()

    async def _send(self) -> None:
        records, self._records = self._records, []
        if records:
            rows = to_ipc(to_table("sandboxes", [record.row() for record in records]))
            await self._buffer.call.record_sandboxes.start(rows)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("rows of sandboxes are lost: %s", error)
