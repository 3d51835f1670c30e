"""Output of a command, of which the beginning and the end are kept."""

from collections import deque


class KeptOutput:
    """Keeps the first and the last half of a bounded number of bytes, whatever is added.

    Invariant: it holds at most `limit` bytes and the last piece that was added.
    """

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._left_out = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._half:
            self._left_out += len(self._tail[0])
            self._tail_bytes -= len(self._tail.popleft())

    def text(self) -> str:
        """Return the kept output; a line says how many bytes are left out between its halves."""
        tail = b"".join(self._tail)
        surplus = max(0, len(tail) - self._half)
        left_out = self._left_out + surplus
        head = bytes(self._head).decode(errors="replace")
        if not left_out:
            return (bytes(self._head) + tail).decode(errors="replace")
        return f"{head}\n[{left_out} bytes left out]\n{tail[surplus:].decode(errors='replace')}"
