"""Runs another program so that it ends with the thread that started this script.

Started as a script with the parent's process id, the program and its arguments. The invariant: a
program whose parent is gone is killed by the kernel (Linux, PR_SET_PDEATHSIG), also where the
parent was killed itself.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Execute the program, unless the parent is gone already."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        os.execv(program[0], program)


if __name__ == "__main__":
    main()
