"""The tree of an expression, and the error of a text that has none."""

from dataclasses import dataclass
from fractions import Fraction


class UnreadableError(ValueError):
    """A text that is no expression, or one that is too large to compute with."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression.

    | op | args | value |
    |---|---|---|
    | number | | the Fraction |
    | symbol, constant | | its name; constants are pi, e, i and oo |
    | add, mul | the terms | |
    | neg, inverse, abs, factorial, percent | one | |
    | pow | base, exponent | |
    | root | radicand, degree | |
    | call | arguments | name of the function |
    | list | items | the brackets, such as "()" or "[)"; "" for a bare list, "{}" for a set |
    | matrix | rows, which are lists | |
    | relation | left, right | "=", "!=", "<" or "<=" |
    | union | sets | |
    | choice | two expressions, as from a plus-minus sign | |
    """

    op: str
    args: tuple["Expression", ...] = ()
    value: str | Fraction = ""

    def symbols(self) -> frozenset[str]:
        """Return the names of all symbols."""
        if self.op == "symbol":
            return frozenset((str(self.value),))
        return frozenset().union(*(arg.symbols() for arg in self.args))


def number(value: int | Fraction) -> Expression:
    """Return a number as a node."""
    return Expression("number", (), Fraction(value))


def negative(node: Expression) -> Expression:
    """Return the negative of a node."""
    return Expression("neg", (node,))


def quotient(top: Expression, bottom: Expression) -> Expression:
    """Return a fraction."""
    return Expression("mul", (top, Expression("inverse", (bottom,))))
