"""Runs another program so that it ends with the thread that started this script.

The script takes the parent's process id, the program and its arguments. Invariant: the kernel kills
the program once its parent has ended, even if the parent was killed (Linux, PR_SET_PDEATHSIG).
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Execute the program unless the parent has already ended."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        os.execv(program[0], program)


if __name__ == "__main__":
    main()
