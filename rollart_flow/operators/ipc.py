"""Conversion of tables to and from Arrow IPC streams, which carry rows between processes."""

import pyarrow as pa


def encode(table: pa.Table) -> bytes:
    """Encode a table as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def decode(data: bytes | pa.Buffer) -> pa.Table:
    """Decode a table that `encode` wrote, without copying its data."""
    return pa.ipc.open_stream(data).read_all()
