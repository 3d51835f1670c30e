"""System calls that no process in a box may make, as a program for the kernel (seccomp).

The namespaces already hide the host. The filter adds what they do not cover: the kernel's key
rings, which no namespace separates, looking into another process, so that a command cannot change
the agent of its own box, and further namespaces, in which a command would have every capability. A
refused call fails with EPERM, as if the privilege were missing.
"""

import errno
import platform
import struct

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = tuple(_AUDIT_ARCH)
"""Names of the processors that a filter can be made for."""
_REFUSED = {
    # ptrace, process_vm_readv, process_vm_writev, kcmp, add_key, request_key, keyctl, bpf,
    # perf_event_open, userfaultfd, unshare, setns, mount, umount2, pivot_root
    "x86_64": (101, 310, 311, 312, 248, 249, 250, 321, 298, 323, 272, 308, 165, 166, 155),
    "aarch64": (117, 270, 271, 272, 217, 218, 219, 280, 241, 282, 97, 268, 40, 39, 41),
}
_REFUSED_EVERYWHERE = (438, 428, 429, 430, 431, 432, 442)
"""pidfd_getfd, open_tree, move_mount, fsopen, fsconfig, fsmount, mount_setattr: the same numbers on
both."""
_UNCOUNTED = {"x86_64": (319, 29), "aarch64": (279, 194)}
"""memfd_create, shmget: memory that only a control group counts."""
_CLONE, _CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
_NEW_NAMESPACES = 0x7E020000
"""Flags of clone that make a namespace. Those of clone3 are in memory, where no filter looks: it is
missing as in an older kernel, and every C library then takes clone."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_FLAGS = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
"""Numbers from here on are the calls of another binary interface, whose numbers differ."""


def filter_program(machine: str | None = None, *, counted: bool = True) -> bytes:
    """Return the filter as packed `struct sock_filter`, empty for a processor without a table.

    Args:
        machine: name of the processor as `platform.machine()` gives it; by default this one.
        counted: whether a control group bounds the memory of the box; without one, memory that no
            limit of a process covers is refused.
    """
    machine = machine or platform.machine()
    if machine not in _REFUSED:
        return b""
    uncounted = () if counted else _UNCOUNTED[machine]
    refused = (*_REFUSED[machine], *_REFUSED_EVERYWHERE, *uncounted)
    steps = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        (_AT_LEAST, len(refused) + 5, 0, _X32),
        *((_EQUAL, len(refused) + 4 - index, 0, number) for index, number in enumerate(refused)),
        (_EQUAL, 5, 0, _CLONE3),
        (_EQUAL, 0, 2, _CLONE[machine]),
        (_LOAD, 0, 0, _OFFSET_FLAGS),
        (_ANY_BIT, 1, 0, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
