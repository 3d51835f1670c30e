"""Feeds of cancellations for the rollout workers that run the attempts."""

from rollart_flow.control.loop.replayable_queue import ReplayableQueue
from rollart_flow.control.protocols import Cancellation


class CancellationFeeds:
    """One feed of cancellations per rollout worker, whose cursors only ever grow.

    Args:
        start: cursor above all cursors of the scheduler that this one replaces.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._feeds: dict[str, ReplayableQueue[Cancellation]] = {}

    def _feed(self, worker: str) -> ReplayableQueue[Cancellation]:
        if worker not in self._feeds:
            self._feeds[worker] = ReplayableQueue(f"cancellations({worker})", start=self._start)
        return self._feeds[worker]

    def publish(self, worker: str, cancellation: Cancellation) -> None:
        """Send a cancellation to a rollout worker."""
        self._feed(worker).publish(cancellation)

    async def read(self, worker: str, after: int) -> tuple[int, tuple[Cancellation, ...]]:
        """Wait for a rollout worker's cancellations past the cursor."""
        return await self._feed(worker).read(after)

    def remove(self, worker: str) -> None:
        """Discard the feed of a lost rollout worker."""
        if (feed := self._feeds.pop(worker, None)) is not None:
            self._start = max(self._start, feed.cursor)
            feed.close()
