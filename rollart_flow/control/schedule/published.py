"""Which versions engines can read: one that is trained may still be on its way to the store.

ROLLART section 6.2: publishing from the trainer overlaps training. The invariant: versions become
readable in their order, and none is swapped to before.
"""

from rollart_flow.control.loop.waits import Signal, waiting


class Published:
    """The versions up to the newest one that can be read.

    Args:
        version: what can be read from the start.
    """

    def __init__(self, version: int) -> None:
        self._newest = version
        self._grown = Signal()

    @property
    def newest(self) -> int:
        """The newest version that can be read."""
        return self._newest

    def add(self, version: int) -> bool:
        """A version can be read now; False where this was known."""
        if version <= self._newest:
            return False
        self._newest = version
        self._grown.notify()
        return True

    async def wait(self, version: int) -> None:
        """Return once a version can be read."""
        while version > self._newest:
            with waiting(f"published({version})"):
                await self._grown.wait()
