"""The filter of system calls, played by a small interpreter of its program."""

import struct

import pytest

from rollart_flow.sandbox.agent.seccomp import filter_program

ALLOW, REFUSE, MISSING, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(program: bytes, number: int, arch: int, flags: int = 0) -> int:
    """The value that the kernel would return for a system call."""
    steps = list(struct.iter_unpack("=HBBI", program))
    data = {0: number, 4: arch, 16: flags}
    value = at = 0
    while True:
        code, true, false, operand = steps[at]
        at += 1
        if code == 0x20:
            value = data[operand]
        elif code == 0x15:
            at += true if value == operand else false
        elif code == 0x35:
            at += true if value >= operand else false
        elif code == 0x45:
            at += true if value & operand else false
        else:
            return int(operand)


@pytest.mark.parametrize(
    ("machine", "ptrace", "keyctl", "memfd", "read"),
    [("x86_64", 101, 250, 319, 0), ("aarch64", 117, 219, 279, 63)],
)
def test_listed_calls_are_refused(
    machine: str, ptrace: int, keyctl: int, memfd: int, read: int
) -> None:
    arch = ARCH[machine]
    program = filter_program(machine)
    for number in (ptrace, keyctl, 438, 442, 428):
        assert verdict(program, number, arch) == REFUSE
    for number in (read, memfd, 439):
        assert verdict(program, number, arch) == ALLOW
    assert verdict(program, 0x40000000 | read, arch) == REFUSE
    assert verdict(program, read, 0x40000003) == KILL
    assert verdict(filter_program(machine, counted=False), memfd, arch) == REFUSE
    assert verdict(filter_program(machine, counted=False), read, arch) == ALLOW


@pytest.mark.parametrize(("machine", "clone"), [("x86_64", 56), ("aarch64", 220)])
def test_processes_start_without_namespaces_of_their_own(machine: str, clone: int) -> None:
    program, arch = filter_program(machine), ARCH[machine]
    child, thread = 17, 0x3D0F00
    assert [verdict(program, clone, arch, flags) for flags in (child, thread)] == [ALLOW, ALLOW]
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert verdict(program, clone, arch, child | 1 << bit) == REFUSE
    assert verdict(program, 435, arch) == MISSING


def test_a_processor_without_a_table_has_no_filter() -> None:
    assert filter_program("mips") == b""
