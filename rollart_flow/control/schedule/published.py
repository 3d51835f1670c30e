"""Published: tracks the versions that engines can read from the weight store.

A trained version may not be published yet, since publishing overlaps training (ROLLART section
6.2). The invariant: versions become readable in order, and engines swap only to readable versions.
"""

from rollart_flow.control.loop.waits import Signal, waiting


class Published:
    """Versions that can be read, up to the newest one.

    Args:
        version: newest version that can be read initially.
    """

    def __init__(self, version: int) -> None:
        self._newest = version
        self._grown = Signal()

    @property
    def newest(self) -> int:
        """The newest version that can be read."""
        return self._newest

    def add(self, version: int) -> bool:
        """Record that a version can be read; return False if this was known."""
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
