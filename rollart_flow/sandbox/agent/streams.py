"""Pipes between the holder of a box and a command in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from rollart_flow.sandbox.output import KeptOutput

_PIECE = 1 << 16
_LAST_BYTES = 1 << 20
"""Most that is read after the end of a command: more than a pipe holds [bytes]."""


class OutputPipe:
    """A pipe whose written end a command gets; its output is taken as it comes.

    Args:
        take: called with each piece.
    """

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self._take = take
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_end, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._receive)

    def hand_over(self) -> None:
        """Close this process's copy of the written end, once the command has it."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def drain(self) -> None:
        """Take what the command wrote before it ended; others may still hold the pipe."""
        taken = 0
        while taken < _LAST_BYTES and (size := self._receive()):
            taken += size

    def close(self) -> None:
        """Close both ends. May be called twice."""
        self.hand_over()
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1

    def _receive(self) -> int:
        """Take one piece; return its size, 0 if there is none now."""
        if self._read_end < 0:
            return 0
        try:
            data = os.read(self._read_end, _PIECE)
        except BlockingIOError:
            return 0
        if data:
            self._take(data)
        else:
            self._loop.remove_reader(self._read_end)
        return len(data)


class KeptPipe(OutputPipe):
    """A pipe of which the beginning and the end of the output are kept.

    Args:
        limit: number of bytes to keep.
    """

    def __init__(self, limit: int) -> None:
        self.kept = KeptOutput(limit)
        super().__init__(self.kept.add)


class CommandStreams:
    """Standard input, output and error of one command, closed with the context.

    Args:
        stdin: all that the command may read.
        limit: bytes that are kept of each output.
    """

    def __init__(self, stdin: bytes, limit: int) -> None:
        self._stdout, self._stderr = KeptPipe(limit), KeptPipe(limit)
        self._given = memory_file(stdin)

    def __enter__(self) -> CommandStreams:
        return self

    def __exit__(self, *error: object) -> None:
        self._stdout.close()
        self._stderr.close()
        os.close(self._given)

    def ends(self) -> tuple[int, int, int]:
        """Return the descriptors that the command gets."""
        return self._given, self._stdout.write_end, self._stderr.write_end

    def hand_over(self) -> None:
        """Close this process's copies of the written ends, once the command has them."""
        self._stdout.hand_over()
        self._stderr.hand_over()

    def drain(self) -> None:
        """Take what the command wrote before it ended."""
        self._stdout.drain()
        self._stderr.drain()

    def texts(self) -> tuple[str, str]:
        """Return what is kept of output and error."""
        return self._stdout.kept.text(), self._stderr.kept.text()


def memory_file(data: bytes) -> int:
    """Return the descriptor of a file in memory with the data, at its beginning."""
    descriptor = os.memfd_create("rollart", os.MFD_CLOEXEC)
    write_all(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data to a file."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_all(descriptor: int, most: int) -> bytes:
    """Read a file to its end, or to one byte beyond the limit if it has grown meanwhile."""
    pieces = bytearray()
    while len(pieces) <= most and (piece := os.read(descriptor, 1 << 20)):
        pieces += piece
    return bytes(pieces[:most])
