"""Verdicts of tests on an answer, which run in a box.

A program gets the input of a test and nothing else; what it prints is compared out here. A unit
test runs in the judge's process, away from the answer's (`judge_program`), and its verdict is the
judge's exit status. Every process of the box is killed between two tests.

Invariant: no verdict depends on what the answer prints, writes to a file or changes in its own
process, other than the output that a program test asks for.
"""

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rollart_flow.errors import RewardFailedError
from rollart_flow.rewards.code.cases import ProgramTest, Tests, UnitTest
from rollart_flow.rewards.code.judge_program import BROKEN, PASSED
from rollart_flow.rewards.code.wire import encode
from rollart_flow.sandbox.base import CommandResult, KilledBy
from rollart_flow.sandbox.box import Box
from rollart_flow.text import one_line
from rollart_flow.types.verdicts import Verdict

_GRACE_S = 2.0
"""Time beyond a test's own limit after which its judge is killed [s]."""
_FUTURE = "from __future__ import annotations\n"
"""A line that only stands at the beginning of a program."""
_PYTHON = ("python3", "-I", "-S", "-B", "-c")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestLimits:
    """The bounds of one answer."""

    __test__ = False  # for pytest, which collects classes of such names

    timeout_s: float
    """Time of each test [s]."""
    total_s: float
    """Time of all tests together; those that are left then fail [s]."""
    memory_mb: int
    """Memory of the answer's process [MiB]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitContext:
    """The names and code that the unit tests of a task rely on."""

    entry: str = ""
    """Name of the function that `check(candidate)` gets; empty if there is none."""
    setup: str = ""
    """Code that runs before each test, away from the answer; its names hide the answer's."""


def verdicts_of(
    box: Box, answer: str, tests: Tests, limits: TestLimits, context: UnitContext
) -> list[Verdict]:
    """Run the tests of an answer in an empty box; return the verdict of each.

    Raises:
        RewardFailedError: the box's Python cannot judge unit tests.
        SandboxError: the box has ended.
    """
    ends_at = time.monotonic() + limits.total_s
    found = []
    for number, test in enumerate(tests):
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            found.append(_verdict(number, None, 0.0, "not run: the time of all tests is over"))
            continue
        box.kill_all()
        timeout_s = min(limits.timeout_s, left_s)
        if isinstance(test, UnitTest):
            found.append(_unit_verdict(box, number, answer, test, timeout_s, limits, context))
        else:
            found.append(_program_verdict(box, number, answer, test, timeout_s))
    return found


def _program_verdict(
    box: Box, number: int, answer: str, test: ProgramTest, timeout_s: float
) -> Verdict:
    box.write("answer.py", answer.encode(errors="replace"))
    given = test.stdin.encode(errors="replace")
    result = box.exec(["python3", "answer.py"], timeout_s=timeout_s, stdin=given)
    if not result.ok:
        return _verdict(number, False, result.seconds, _why(result))
    right = test.passes(result.stdout)
    return _verdict(number, right, result.seconds, "" if right else "wrong output")


def _unit_verdict(
    box: Box,
    number: int,
    answer: str,
    test: UnitTest,
    timeout_s: float,
    limits: TestLimits,
    context: UnitContext,
) -> Verdict:
    request = {
        "answer": answer,
        "test": test.code,
        "entry": context.entry,
        "setup": context.setup,
        "program": _program("answer_program"),
        "timeout_s": timeout_s,
        "memory_bytes": limits.memory_mb << 20,
    }
    command = [*_PYTHON, _program("judge_program")]
    given = message(request)
    result = box.exec(command, timeout_s=timeout_s + _GRACE_S, stdin=given)
    if result.exit_code == BROKEN:
        raise RewardFailedError(f"code_tests: {one_line(result.stderr)}; use another image")
    passed = result.exit_code == PASSED
    return _verdict(number, passed, result.seconds, "" if passed else _why(result))


def _why(result: CommandResult) -> str:
    """Return why a command failed, in one line."""
    if result.killed_by is not KilledBy.NOTHING:
        return f"killed by its limit of {result.killed_by.value}"
    lines = result.stderr.strip().splitlines() or [f"exit status {result.exit_code}"]
    return lines[-1]


def _verdict(number: int, passed: bool | None, seconds: float, message: str) -> Verdict:
    said = one_line(message) or None
    return Verdict(key=f"test {number + 1}", passed=passed, seconds=seconds, message=said)


def message(request: Mapping[str, object]) -> bytes:
    """Return a request as the judge reads it from its standard input."""
    data = encode(dict(request), lambda value: len(repr(value)))
    return struct.pack("!I", len(data)) + data


@cache
def _program(name: str) -> str:
    """Return a program of this folder with the text of `wire`, which it uses, before it."""
    return f"{_text('wire')}\n{_text(name).replace(_FUTURE, '', 1)}"


def _text(name: str) -> str:
    return (files("rollart_flow.rewards.code") / f"{name}.py").read_text(encoding="utf-8")


def share_passed(verdicts: list[Verdict]) -> float:
    """Return the share of tests that passed."""
    return sum(verdict.passed is True for verdict in verdicts) / len(verdicts)
