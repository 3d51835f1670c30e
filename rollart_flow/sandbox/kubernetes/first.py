"""The first process of a pod: it ends the box with its holder, or when the lifetime is over.

Its code is an argument of `python3` in the pod, so that it needs Python 3.9 and nothing else there.
The standard input is the holder's: it closes with the connection to the holder. As the first
process of a process namespace it collects what commands leave behind, and its end ends all of them.
"""

import ctypes
import os
import select
import signal
import sys
import time


def wait_for_the_end(lifetime_s: float) -> None:
    """Collect processes until the standard input closes or the time is over."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: nobody else looks into this process
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    ends_at = time.monotonic() + lifetime_s
    while (left := ends_at - time.monotonic()) > 0:
        ready, _, _ = select.select([0, wakes], [], [], left)
        if wakes in ready:
            os.read(wakes, 4096)
            _collect()
        if 0 in ready and not os.read(0, 4096):
            return


def _collect() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    wait_for_the_end(float(sys.argv[1]))
