"""The child side of an isolated process: a handler that answers JSON lines until the socket closes.

While it handles a request, a handler with a method `connect` may ask the parent in turn, with the
function that `connect` gets: a line `{"ask": ..., "bytes": N}` and N bytes. The parent answers with
a line `{"answer": ..., "bytes": N}` and N bytes.

The script is started with the socket's file descriptor and the handler's `module:Class` or
`file.py:Class`, so that only the standard library is loaded before the handler's own module, also
by an interpreter that has no other package. It forks twice: the first two processes lead, and the
third one runs the handler; each has a session of its own. Whatever the handler starts, also through
`setsid` and a double fork, becomes a child of the inner leader once its own parent has ended
(Linux, PR_SET_CHILD_SUBREAPER), and a child of the outer leader if the inner one is killed.

Invariant: when a leader ends, none of its descendants is left. A leader ends when the process that
it forked has ended, at SIGTERM, and when its parent is gone, for which the kernel sends SIGTERM
(PR_SET_PDEATHSIG). If one of the two is killed by SIGKILL, the other one ends what the handler
started: a process of Ray kills its children, and so the outer leader, when it ends.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from types import ModuleType
from typing import BinaryIO, cast

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
TRACEBACKS = "ROLLART_CHILD_TRACEBACKS"
"""Variable that lets this process print the traceback of an error besides answering with a line."""
_LONGEST = 2000
"""Characters of an error's line."""
_AWAITED = (signal.SIGTERM, signal.SIGCHLD)


def error_line(error: BaseException) -> str:
    """Return the end of an error's traceback, its type and message, as one bounded line.

    The message of an error of this library is complete without its type.
    """
    if type(error).__module__ == "rollart_flow.errors":
        said = str(error)
    else:
        said = "".join(traceback.format_exception_only(error))
    line = " ".join(said[: 4 * _LONGEST].split())
    return line[:_LONGEST].encode(errors="replace").decode()


class _Parent:
    """The parent as a handler sees it: it answers while a request of its own is open."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._turn = threading.Lock()
        self.asks_now = False

    def ask(self, question: object, data: bytes = b"") -> tuple[object, bytes]:
        """Return the parent's answer and its bytes; one thread asks at a time."""
        with self._turn:
            if not self.asks_now:
                raise RuntimeError("the parent answers only while it waits for an answer itself")
            head = json.dumps({"ask": question, "bytes": len(data)}).encode() + b"\n"
            self._stream.write(head + data)
            self._stream.flush()
            line = self._stream.readline()
            if not line:
                os._exit(0)  # the parent is gone
            answer = json.loads(line)
            return answer["answer"], self._stream.read(answer["bytes"])

    def tell(self, answer: str) -> None:
        """Answer the parent's request, after any thread that asks."""
        secret = sys.modules.get("rollart_flow.secret")
        with self._turn:
            self.asks_now = False
            line = answer if secret is None else secret.masked(answer)
            self._stream.write(line.encode() + b"\n")
            self._stream.flush()


def serve(line: socket.socket, handler_name: str) -> None:
    """Answer each request: `{"answer": ...}`, or `{"error": end of the traceback}`."""
    handler = None
    with line, line.makefile("rwb") as stream:
        parent = _Parent(cast(BinaryIO, stream))
        for request in stream:
            parent.asks_now = True
            try:
                if handler is None:
                    module, _, name = handler_name.rpartition(":")
                    handler = getattr(_module(module), name)()
                    if hasattr(handler, "connect"):
                        handler.connect(parent.ask)
                answer = json.dumps({"answer": handler(json.loads(request))})
            except Exception as error:  # noqa: BLE001  the user's code ends here: its error is data
                if os.environ.get(TRACEBACKS):
                    traceback.print_exc()
                    sys.stderr.flush()
                answer = json.dumps({"error": error_line(error)})
            parent.tell(answer)


def _module(place: str) -> ModuleType:
    """Import a module by its name, or run a file as a module of the file's name."""
    if not place.endswith(".py"):
        return importlib.import_module(place)
    from importlib.util import module_from_spec, spec_from_file_location

    name = os.path.basename(place).removesuffix(".py")
    spec = spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} cannot be loaded")
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def children_of(pid: int) -> list[int]:
    """Return the direct children of a process; those that end meanwhile may hide others."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as listed:
                found += map(int, listed.read().split())
    return found


def _lead(forked: int) -> None:
    """Wait until the forked process has ended or SIGTERM arrives, then end with all others."""
    ending: int | None = None
    while ending is None:
        stopped = signal.sigwait(_AWAITED) == signal.SIGTERM
        ending = signal.SIGKILL.value if stopped else _reaped(forked)
    _end_descendants()
    if os.WIFEXITED(ending):
        os._exit(os.WEXITSTATUS(ending))
    by = os.WTERMSIG(ending)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.kill(os.getpid(), by)


def _reaped(forked: int) -> int | None:
    """Reap all that have ended; return the wait status of the forked process if it has."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == forked:
                found = ended[1]
    return found


def _end_descendants() -> None:
    """Kill the children until there are none; those of a killed one become children meanwhile."""
    with suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            for pid in children_of(os.getpid()):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _die_with(parent: int, by: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:  # it ended before the call to the kernel
        os._exit(0)


def _fork_below_leader(descriptor: int, parent: int) -> None:
    """Let this process lead, and return in the one that it forks, which has a session."""
    _die_with(parent, signal.SIGTERM)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if forked := os.fork():
        os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the handler's process dumped its own
        _lead(forked)
    os.setsid()


def main() -> None:
    descriptor, handler_name, parent = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    for awaited in _AWAITED:
        signal.signal(awaited, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    outer = os.getpid()
    _fork_below_leader(descriptor, parent)
    inner = os.getpid()
    _fork_below_leader(descriptor, outer)
    _die_with(inner, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
    os.set_inheritable(descriptor, False)
    serve(socket.socket(fileno=descriptor), handler_name)


if __name__ == "__main__":
    main()
