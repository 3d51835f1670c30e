"""The buffer operator: hands finished trajectories to the buffer and waits until they are durable.

Run again after its process died, it sends what was sent before; the buffer takes it once.
"""

from typing import Any

import pyarrow as pa

from rollart_flow.operators.ipc import encode


class BufferSink:
    """Commits one-row blocks of trajectories; what leaves is the acknowledgement."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    async def __call__(self, block: pa.Table) -> pa.Table:
        """Return the ids once the rows are in the table."""
        await self._buffer.put.remote(encode(block))
        return block.select(["trajectory_id", "outcome"])
