"""The buffer operator: hands finished trajectories to the buffer and waits until they are durable.

If its process dies, the operator runs again and may resend trajectories; the buffer stores each
trajectory once.
"""

from typing import TYPE_CHECKING

import pyarrow as pa

from rollart_flow.operators.ipc import encode
from rollart_flow.resources import Remote

if TYPE_CHECKING:
    from rollart_flow.operators.buffer import BufferActor


class BufferSink:
    """Operator that commits one-row blocks of trajectories and returns acknowledgements."""

    def __init__(self, buffer: "Remote[BufferActor]") -> None:
        self._buffer = buffer

    async def __call__(self, block: pa.Table) -> pa.Table:
        """Commit a block; return its ids and outcomes once its rows are in the table."""
        await self._buffer.call.put.start(encode(block))
        return block.select(["trajectory_id", "outcome"])
