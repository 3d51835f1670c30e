"""The filter of system calls of a command in a pod, beside the runtime's own (`seccomp`).

Some runtimes let a process make a user namespace, in which it has every capability.
"""

import ctypes
import os
import platform

_NO_NEW_PRIVILEGES, _SECCOMP = 38, 22


def filter_calls(programs: dict[str, str]) -> None:
    """Have the kernel filter the calls of this process and of all that it starts.

    Args:
        programs: hexadecimal digits of the filter by the name of the processor.

    Raises:
        OSError: the kernel refuses it.
    """
    program = bytes.fromhex(programs.get(platform.machine(), ""))
    if not program:
        return
    instructions = ctypes.create_string_buffer(program, len(program))
    described = (ctypes.c_uint64 * 2)(len(program) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, 2, ctypes.byref(described))):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"filter: {os.strerror(ctypes.get_errno())}")
