"""Values of expressions with many digits, at fixed points: two that differ are not equal.

Invariant: every operation is bounded before it is computed, so that no expression takes long or
much memory; one that would is unreadable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from hashlib import blake2b
from typing import Any

from rollart_flow.rewards.math.tree import Expression, UnreadableError

DIGITS = 60
"""Digits with which values are computed."""
_AGREE = 40
"""Digits in which two values must agree to be taken as equal here."""
_POINTS = 5
_LARGEST_BITS = 20_000
"""Logarithm to base 2 of the largest number."""
_LARGEST_FACTORIAL = 1000
_LARGEST_ANGLE = 10**9


@cache
def _context() -> Any:
    from mpmath import MPContext

    context = MPContext()
    context.dps = DIGITS
    return context


def rational(node: Expression) -> Fraction | None:
    """Return the value of a number that needs no root and no function, else None."""
    if node.op == "number":
        return Fraction(node.value)
    if node.op not in ("add", "mul", "neg", "inverse"):
        return None
    values = [rational(arg) for arg in node.args]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    if node.op == "inverse":
        return 1 / known[0] if known[0] else None
    if node.op == "neg":
        return -known[0]
    total = Fraction(node.op == "mul")
    for value in known:
        total = total * value if node.op == "mul" else total + value
    return total


def points(names: frozenset[str]) -> Iterator[Mapping[str, Any]]:
    """Yield values of symbols: the same for a name at each call, of both signs, none special."""
    context = _context()
    for index in range(_POINTS):
        found = {}
        for name in names:
            digest = blake2b(f"{index}/{name}".encode(), digest_size=8).digest()
            value = context.mpf(int.from_bytes(digest)) / 2**64 * 3 + context.mpf(1) / 7
            found[name] = -value if index and digest[0] % 2 else value
        yield found
        if not names:
            return


def value_of(node: Expression, point: Mapping[str, Any]) -> Any:
    """Return the value of an expression at a point.

    Raises:
        UnreadableError: it has none there, or one that is too large to compute.
    """
    try:
        found = _Evaluator(point).value(node)
    except (ZeroDivisionError, OverflowError, TypeError, ValueError) as error:
        raise UnreadableError(str(error)) from error
    if _context().isnan(found):
        raise UnreadableError("it has no value")
    return found


def agree(left: Any, right: Any) -> bool:
    """Return whether two values are equal in nearly all digits."""
    context = _context()
    if context.isinf(left) or context.isinf(right):
        return bool(left == right)
    size = max(abs(left), abs(right))
    return bool(abs(left - right) <= size * context.mpf(10) ** -_AGREE)


class _Evaluator:
    def __init__(self, point: Mapping[str, Any]) -> None:
        self._point = point
        self._mp = _context()

    def value(self, node: Expression) -> Any:
        if node.op == "number":
            fraction = Fraction(node.value)
            return self._mp.mpf(fraction.numerator) / fraction.denominator
        if node.op == "symbol":
            return self._point[str(node.value)]
        if node.op == "constant":
            constants = {"pi": self._mp.pi, "e": self._mp.e, "i": self._mp.j, "oo": self._mp.inf}
            return +constants[str(node.value)]
        values = [self.value(arg) for arg in node.args]
        if node.op == "call":
            return self._called(str(node.value), values)
        return getattr(self, f"_{node.op}", self._unknown)(*values)

    def _unknown(self, *values: Any) -> Any:
        raise UnreadableError("it is no number")

    def _add(self, *terms: Any) -> Any:
        return self._mp.fsum(terms)

    def _mul(self, *terms: Any) -> Any:
        return self._bounded(self._mp.fprod(terms))

    def _neg(self, term: Any) -> Any:
        return -term

    def _inverse(self, term: Any) -> Any:
        return self._bounded(1 / term)

    def _percent(self, term: Any) -> Any:
        return term / 100

    def _abs(self, term: Any) -> Any:
        return abs(term)

    def _factorial(self, term: Any) -> Any:
        if self._mp.im(term) or not abs(term) <= _LARGEST_FACTORIAL:
            raise UnreadableError("a factorial is too large")
        return self._mp.factorial(term)

    def _pow(self, base: Any, exponent: Any) -> Any:
        if base == 0:
            if self._mp.re(exponent) <= 0 and exponent != 0:
                raise ZeroDivisionError("division by zero")
            return self._mp.mpf(exponent == 0)
        bits = abs(exponent) * (abs(self._mp.log(abs(base), 2)) + 5)
        if not bits < _LARGEST_BITS:
            raise UnreadableError("a power is too large")
        return self._mp.power(base, exponent)

    def _root(self, radicand: Any, degree: Any) -> Any:
        odd = self._mp.isint(degree) and int(degree) % 2 == 1 and 0 < degree < _LARGEST_BITS
        if odd and self._mp.im(radicand) == 0 and radicand < 0:
            return -self._pow(-radicand, 1 / degree)
        return self._pow(radicand, 1 / degree)

    def _called(self, name: str, values: list[Any]) -> Any:
        if name == "binomial":
            top, bottom = values
            if not (0 <= bottom <= top <= _LARGEST_FACTORIAL):
                raise UnreadableError("a binomial is too large")
            return self._mp.binomial(top, bottom)
        (value,) = values
        if name == "exp":
            return self._pow(self._mp.e, value)
        if name == "log":
            if value == 0:
                raise ZeroDivisionError("logarithm of zero")
            return self._mp.log(value)
        if abs(self._mp.im(value)) > 1000 or not abs(value) < _LARGEST_ANGLE:
            raise UnreadableError("an angle is too large")
        if name in ("sinh", "cosh", "tanh") and abs(value) > _LARGEST_FACTORIAL:
            raise UnreadableError("an argument is too large")
        return getattr(self._mp, name)(value)

    def _bounded(self, value: Any) -> Any:
        if value and self._mp.isfinite(value) and abs(self._mp.mag(value)) > _LARGEST_BITS:
            raise UnreadableError("a number is too large")
        return value
