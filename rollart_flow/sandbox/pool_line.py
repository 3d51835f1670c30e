"""The line of an environment's process to a pool of its node, beside the way through its parent.

The first call of an attempt, `open`, goes through the parent, which finds the pool. If the pool is
on this node, its answer offers the socket that the pool listens at (`pool_socket`), and later calls
go there: one process less is woken, and no call of Ray is made. Where no connection can be made,
all calls go through the parent.

A frame on the line is its length in 8 bytes and a message (`box_calls.framed`). The first message
is the offer's session and key.

Invariant: the boxes of an attempt end with its line. After a call that was interrupted there is no
line, so that no answer is taken for that of another call.
"""

import socket
import threading
from collections.abc import Mapping

from rollart_flow.errors import SandboxError
from rollart_flow.sandbox.box_calls import Ask, Message, error_answer, framed, unframed

LENGTH_BYTES = 8
"""Bytes of the length of a frame."""
_CONNECT_S = 10.0
"""Longest time until a pool has taken a connection [s]."""
_GONE = "the sandbox has ended: its pool is gone"


class PoolLine:
    """Carries the calls of boxes of one attempt; threads take turns.

    Args:
        ask: carries calls through the parent.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._turn = threading.Lock()
        self._socket: socket.socket | None = None
        self._offer: Mapping[str, str] | None = None

    def __call__(self, call: Message, data: bytes) -> tuple[Message, bytes]:
        """Return the answer to a call, and its bytes."""
        with self._turn:
            if call["call"] == "open":
                answer, found = self._ask({**call, "direct": True}, data)
                if "value" in answer:
                    self._use(answer["value"])
                return answer, found
            if self._socket is None:
                return self._ask(call, data)
            try:
                send_frame(self._socket, framed(call, data))
                return unframed(receive_frame(self._socket))
            except OSError:
                self._end()
                return error_answer(SandboxError(_GONE)), b""
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """End the line, with which the boxes of the attempt end. May be called twice."""
        with self._turn:
            self._end()

    def _use(self, offer: Mapping[str, str] | None) -> None:
        """Connect to the pool that opened a box, unless the line leads there."""
        if offer == self._offer and self._socket is not None:
            return
        self._end()
        if offer is None:
            return
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.settimeout(_CONNECT_S)
            line.connect(offer["path"])
            send_frame(line, framed({"session": offer["session"], "key": offer["key"]}, b""))
            receive_frame(line)
            line.settimeout(None)
        except OSError:  # another mount namespace or user: the parent goes on to carry the calls
            line.close()
        except BaseException:
            line.close()
            raise
        else:
            self._socket, self._offer = line, offer

    def _end(self) -> None:
        line, self._socket, self._offer = self._socket, None, None
        if line is not None:
            try:
                line.shutdown(socket.SHUT_RDWR)  # a forked process may hold it, too
            except OSError:
                pass
            finally:
                line.close()


def send_frame(line: socket.socket, frame: bytes) -> None:
    """Send a frame.

    Raises:
        OSError: the other end is gone.
    """
    line.sendall(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)


def receive_frame(line: socket.socket) -> bytes:
    """Wait for a frame and return it.

    Raises:
        ConnectionError: the other end has closed.
    """
    size = int.from_bytes(_exactly(line, LENGTH_BYTES), "big")
    return bytes(_exactly(line, size))


def _exactly(line: socket.socket, size: int) -> bytearray:
    received = bytearray()
    while len(received) < size:
        piece = line.recv(min(size - len(received), 1 << 20))
        if not piece:
            raise ConnectionResetError("the other end has closed")
        received += piece
    return received
