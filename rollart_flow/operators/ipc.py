"""Tables as Arrow IPC streams: the form in which rows cross process boundaries."""

import pyarrow as pa


def encode(table: pa.Table) -> bytes:
    """A table as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def decode(data: bytes | pa.Buffer) -> pa.Table:
    """The table that `encode` wrote, without a copy."""
    return pa.ipc.open_stream(data).read_all()
