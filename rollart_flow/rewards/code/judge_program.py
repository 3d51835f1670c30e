"""The judge of one unit test: it starts the answer as a process of its own, and runs the test.

What the test calls of the answer runs in the answer's process, and what that returns crosses as
plain data. Anything else, such as an instance of a class of the answer, becomes an `AnswerObject`,
which calls back into the answer's process and equals nothing but itself.

Invariants: no object and no code of the answer ever reaches the judge, so that patched builtins,
`__eq__` methods and `sys.exit` have no effect there. The outcome is the judge's exit status, and no
other process can read or change the judge from before the answer starts.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # signal loads enum, which is slow
import builtins
import os
import resource
import sys
from types import FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:  # in a box, the text of `wire` stands before this one
    from collections.abc import Callable
    from typing import Any

    from rollart_flow.rewards.code.wire import AnswerGone, Decoder, encode, receive, send

PASSED, FAILED, BROKEN = 0, 1, 70
"""Exit statuses of the judge; BROKEN: it could not shield itself, so that it judged nothing."""
_PR_SET_DUMPABLE = 4
_MODULES = frozenset({
    "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools",
    "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string",
    "typing",
})  # fmt: skip
"""Modules that a test may find under their names because the answer imports them: these, and not
what the answer has under such a name."""


class TimeIsOver(BaseException):
    """The time of the test is over; no test may catch it."""


class AnswerProcess:
    """The answer's process, as the judge sees it."""

    def __init__(self, program: str, memory_bytes: int) -> None:
        inward, self._requests = os.pipe()
        self._replies, outward = os.pipe()
        if not os.fork():
            _become_answer(program, inward, outward, memory_bytes)
        os.close(inward)
        os.close(outward)

    def ask(self, *message: Any) -> Any:
        """Return what the answer's process replies; raise here what its code raised."""
        request = encode(message, _number_of)
        try:
            send(self._requests, request)
        except BrokenPipeError:
            raise AnswerGone("the answer ended its process") from None
        well, reply = Decoder(receive(self._replies), lambda it: AnswerObject(self, it)).value()
        if not well:
            name, text = reply
            known = vars(builtins).get(name)
            if isinstance(known, type) and issubclass(known, Exception):
                raise known(text)
            raise RuntimeError(text)
        return reply


class AnswerObject:
    """An object of the answer that is no data: a function, a class or an instance of one."""

    def __init__(self, process: AnswerProcess, number: int) -> None:
        self._process = process
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return self._process.ask("get", self, name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._called("__call__", given, named)

    def _called(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        result, after = self._process.ask("call", self, name, given, named)
        if result is None:  # a function that changes its arguments in place returns nothing
            for item, changed in zip(given, after, strict=True):
                _replace(item, changed)
        return result


def _number_of(value: Any) -> int:
    if not isinstance(value, AnswerObject):
        raise TypeError(f"a test cannot pass {type(value).__name__} to the answer")
    return value._number


def _method(name: str) -> Callable[..., Any]:
    return lambda self, *given: self._called(name, given, {})


for _name in ("len", "getitem", "setitem", "delitem", "contains", "iter", "next", "str", "repr"):
    setattr(AnswerObject, f"__{_name}__", _method(f"__{_name}__"))


def _replace(item: Any, after: Any) -> None:
    """Give a list, dict or set of the test the contents that the answer left in its copy."""
    if isinstance(item, list) and isinstance(after, list):
        item[:] = after
    elif isinstance(item, dict | set) and isinstance(after, type(item)):
        item.clear()
        item.update(after)


def _become_answer(program: str, inward: int, outward: int, memory_bytes: int) -> None:
    """Turn a fork of the judge into the answer's process."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    inward, outward = os.dup(inward), os.dup(outward)  # above the places that they get
    for source, target in ((nothing, 0), (nothing, 1), (nothing, 2), (inward, 3), (outward, 4)):
        os.dup2(source, target)
    os.closerange(5, 256)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    os.execv(sys.executable, [sys.executable, "-I", "-B", "-c", program])


def judge(request: dict[str, Any]) -> None:
    """Run the test of a request; return if it passes, raise if not."""
    answer = AnswerProcess(request["program"], request["memory_bytes"])
    found = answer.ask("load", request["answer"])
    scope: dict[str, Any] = {"__name__": "tests"}
    exec(compile(request["setup"], "setup.py", "exec", dont_inherit=True), scope)
    entry = request["entry"]
    if entry and entry not in found:
        raise NameError(f"the answer does not define {entry!r}")
    for name, value in found.items():
        if name in _MODULES:
            value = __import__(name)
        if name == entry or not (name in scope or hasattr(builtins, name)):
            scope[name] = value
    module = type(sys)("solution")
    vars(module).update(found)
    sys.modules["solution"] = module
    before = dict(scope)
    exec(compile(request["test"], "test.py", "exec", dont_inherit=True), scope)
    defined = {name: it for name, it in scope.items() if before.get(name) is not it}
    _run_defined(defined, found.get(entry))


def _run_defined(defined: dict[str, Any], candidate: Any) -> None:
    """Run what the test only defines: `check(candidate)`, `test_...` functions, test cases."""
    for name, value in defined.items():
        if not isinstance(value, FunctionType):
            continue
        if name == "check" and candidate is not None:
            value(candidate)
        elif name.startswith("test"):
            value()
    if any(isinstance(value, type) and hasattr(value, "assertEqual") for value in defined.values()):
        import unittest

        for value in defined.values():
            if isinstance(value, type) and issubclass(value, unittest.TestCase):
                result = unittest.TestResult()
                unittest.defaultTestLoader.loadTestsFromTestCase(value).run(result)
                if not result.wasSuccessful() or not result.testsRun:
                    failed = [*result.errors, *result.failures]
                    raise AssertionError(failed[0][1].strip() if failed else "no test ran")


def shield() -> str:
    """Keep other processes of the box out of this one; return why that is impossible, or empty."""
    try:
        import ctypes

        refused = ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (ImportError, OSError, AttributeError) as error:
        return str(error)
    return "prctl was refused" if refused else ""


def main() -> int:
    """Judge the request of the standard input; return the exit status."""

    def over(number: int, frame: object) -> None:
        raise TimeIsOver("the time of the test is over")

    request = Decoder(receive(0), [].__getitem__).value()
    if problem := shield():
        return _ended(BROKEN, f"the judge cannot shield itself: {problem}")
    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
    try:
        judge(request)
    except BaseException as error:  # noqa: BLE001  whatever ends the test otherwise fails it
        return _ended(FAILED, f"{type(error).__name__}: {error}")
    return PASSED


def _ended(status: int, message: str) -> int:
    os.write(2, message[:2000].encode(errors="replace"))
    return status


if __name__ == "__main__":
    status = BROKEN
    try:
        status = main()
    finally:
        os._exit(status)
