"""The child side of an isolated process: a handler that answers JSON lines until the socket closes.

The process is started as a script with the socket's file descriptor and the handler's
`module:Class`, so that only the standard library is loaded before the handler's own module.

Invariant: a process whose parent is gone ends, even in an endless loop; the kernel kills it (Linux,
PR_SET_PDEATHSIG).
"""

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import traceback

_PR_SET_PDEATHSIG = 1


def error_line(error: BaseException) -> str:
    """Return the end of an error's traceback, its type and message, as one line."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


def serve(line: socket.socket, handler_name: str) -> None:
    """Answer each request: `{"answer": ...}`, or `{"error": end of the traceback}`."""
    handler = None
    with line, line.makefile("rwb") as stream:
        for request in stream:
            try:
                if handler is None:
                    module, _, name = handler_name.partition(":")
                    handler = getattr(importlib.import_module(module), name)()
                answer = json.dumps({"answer": handler(json.loads(request))})
            except Exception as error:  # noqa: BLE001  the user's code ends here: its error is data
                answer = json.dumps({"error": error_line(error)})
            stream.write(answer.encode() + b"\n")
            stream.flush()


def main() -> None:
    descriptor, handler_name, parent = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call to the kernel
        return
    os.set_inheritable(descriptor, False)
    serve(socket.socket(fileno=descriptor), handler_name)


if __name__ == "__main__":
    main()
