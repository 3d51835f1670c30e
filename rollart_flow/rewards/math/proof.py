"""Proofs by sympy that two expressions are equal, within a limit of time.

The expressions come as trees, and are built without sympy's parsers, which evaluate text.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from rollart_flow.rewards.math.tree import Expression


class TooLongError(BaseException):
    """The proof took too long; a base exception, so that no library catches it on its way."""


def proved_equal(left: Expression, right: Expression, limit_s: float) -> bool:
    """Return whether sympy proves that two expressions are equal within a limit of time [s]."""
    import sympy  # before the clock starts: it loads for a second

    names = left.symbols() | right.symbols()
    symbols = {
        name: sympy.Symbol(f"x{number}", real=True) for number, name in enumerate(sorted(names))
    }
    return within(limit_s, lambda: _is_zero(_built(left, symbols) - _built(right, symbols)))


def _is_zero(difference: Any) -> bool:
    import sympy

    if difference == 0 or sympy.expand(difference) == 0:
        return True
    if difference.free_symbols:
        if sympy.cancel(sympy.together(difference)) == 0:
            return True
        return bool(sympy.simplify(difference) == 0)
    return difference.equals(0) is True


def _built(node: Expression, symbols: Mapping[str, Any]) -> Any:
    """Return an expression of sympy."""
    import sympy

    if node.op == "number":
        fraction = Fraction(node.value)
        return sympy.Rational(fraction.numerator, fraction.denominator)
    if node.op == "symbol":
        return symbols[str(node.value)]
    if node.op == "constant":
        known = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "oo": sympy.oo}
        return known[str(node.value)]
    args = [_built(arg, symbols) for arg in node.args]
    if node.op == "call":
        return getattr(sympy, str(node.value))(*args)
    makers: dict[str, Callable[..., Any]] = {
        "add": sympy.Add,
        "mul": sympy.Mul,
        "neg": lambda term: -term,
        "inverse": lambda term: 1 / term,
        "percent": lambda term: term / 100,
        "abs": sympy.Abs,
        "factorial": sympy.factorial,
        "pow": sympy.Pow,
        "root": _root,
    }
    return makers[node.op](*args)


def _root(radicand: Any, degree: Any) -> Any:
    import sympy

    if degree.is_Integer and degree % 2 == 1 and radicand.is_negative:
        return -sympy.root(-radicand, degree)
    return sympy.root(radicand, degree)


def within(limit_s: float, call: Callable[[], bool]) -> bool:
    """Return what a call of Python code gives, or False if it takes longer than the limit [s].

    It works in every thread. The exception interrupts code of Python; the bounds of `numeric` see
    to it that no single operation of C takes long.
    """
    ours = ctypes.c_ulong(threading.get_ident())
    raises = ctypes.pythonapi.PyThreadState_SetAsyncExc
    lock, done = threading.Lock(), False

    def interrupt() -> None:
        with lock:
            if not done:
                raises(ours, ctypes.py_object(TooLongError))

    timer = threading.Timer(limit_s, interrupt)
    timer.start()
    try:
        try:
            found = call()
        finally:
            with lock:
                done = True
                raises(ours, None)  # takes back what was not raised yet
            timer.cancel()
            timer.join()
    except TooLongError:
        return False
    return found
