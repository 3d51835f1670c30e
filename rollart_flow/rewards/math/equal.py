r"""Whether two answers are equal: expressions, sets, intervals, tuples, equations, units, words.

A text may have several readings, such as `5 m` as a length and as a product; two texts are equal if
some readings of them are. Numbers without roots are compared as fractions. Others are compared in
forty digits at several points, and those that agree are equal if sympy proves it.
"""

import re
from itertools import product

from rollart_flow.rewards.math.numeric import agree, points, rational, value_of
from rollart_flow.rewards.math.parser import parse
from rollart_flow.rewards.math.proof import proved_equal
from rollart_flow.rewards.math.tokens import MOST_CHARACTERS, plain
from rollart_flow.rewards.math.tree import Expression, UnreadableError, negative, number, quotient
from rollart_flow.rewards.math.units import Unit, split_unit

_MOST_CHOICES = 8
_MOST_ITEMS = 64
_INFINITY = Expression("constant", (), "oo")
_MARKS = (
    r"\\boxed\s*\{(.*)\}",
    r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}",
    r"\*\*(.*)\*\*",
)


def are_equal(given: str, expected: str, *, limit_s: float = 2.0) -> bool:
    """Return whether two answers are equal, as far as that can be proved in a limit of time [s].

    A unit or a percent sign that only one of them has is ignored; numbers up to 1 must then be the
    percentage's fraction.
    """
    if _words(given) == _words(expected):
        return bool(_words(given))
    if max(len(given), len(expected)) > 2 * MOST_CHARACTERS:
        return False
    comparison = _Comparison(limit_s)
    pairs = product(_readings(given), _readings(expected))
    return any(comparison.answers(*one, *other) for one, other in pairs)


def _words(text: str) -> str:
    """Return a text for comparison as words."""
    text = plain(_unmarked(text)).casefold()
    between_words = r"\s+" if re.search(r"[\d\\=+]", text) is None else r"(?<=\d)\s+(?=\d)"
    return re.sub(r"\s+", "", re.sub(between_words, "\0", text))


def _unmarked(text: str) -> str:
    """Return a text without the markup around all of it."""
    text = text.strip().strip("$").strip()
    for mark in _MARKS:
        if (found := re.fullmatch(mark, text, re.DOTALL)) is not None:
            return _unmarked(found[1])
    return text


_Reading = tuple[Expression, Unit | None]


def _readings(text: str) -> list[_Reading]:
    """Return the trees that a text may stand for, each with the unit after it."""
    text = plain(_unmarked(text))
    before, unit = split_unit(text)
    found: list[_Reading] = []
    for part, its_unit in ((text, None), (before, unit)):
        try:
            if its_unit is not None or not found:
                found.append((parse(part), its_unit))
        except (UnreadableError, RecursionError):
            continue
    return found


class _Comparison:
    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def answers(
        self, left: Expression, left_unit: Unit | None, right: Expression, right_unit: Unit | None
    ) -> bool:
        """Return whether two readings with their units are equal."""
        if left_unit is not None and right_unit is not None:
            if not left_unit.fits(right_unit):
                return False
            left, right = _in_base_unit(left, left_unit), _in_base_unit(right, right_unit)
        try:
            return self._percentages(left, right) or self._equal(left, right)
        except (UnreadableError, RecursionError):
            return False

    def _percentages(self, left: Expression, right: Expression) -> bool:
        """Return whether a percentage is the number of percent that the other one is."""
        if (left.op == "percent") == (right.op == "percent"):
            return False
        percentage, other = (left, right) if left.op == "percent" else (right, left)
        value = rational(other)
        return value is not None and abs(value) > 1 and self._equal(percentage.args[0], other)

    def _equal(self, left: Expression, right: Expression) -> bool:
        left, right = _value_side(left, right)
        left, right = _as_interval(left, right), _as_interval(right, left)
        if max(len(_chosen(left)), len(_chosen(right))) > 1:
            return self._unordered(_items(left), _items(right))
        kinds = {left.op, right.op}
        if "list" in kinds:
            return self._lists(left, right)
        if "relation" in kinds:
            return left.op == right.op and self._relations(left, right)
        if kinds & {"matrix", "union"}:
            if left.op != right.op:
                return False
            same = self._ordered if left.op == "matrix" else self._unordered
            return same(left.args, right.args)
        return self._expressions(left, right)

    def _lists(self, left: Expression, right: Expression) -> bool:
        if left.op != "list" or right.op != "list":
            return False
        one, other = str(left.value), str(right.value)
        if {one, other} <= {"", "{}"}:
            return self._unordered(_items(left), _items(right))
        open_bare = "" in (one, other) and {one, other} <= {"", "()"}
        round_or_square = {one, other} <= {"()", "[]"} and len(left.args) > 2
        same = one == other or round_or_square or (open_bare and len(left.args) > 1)
        return same and self._ordered(left.args, right.args)

    def _ordered(self, left: tuple[Expression, ...], right: tuple[Expression, ...]) -> bool:
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(self._equal(*pair) for pair in pairs)

    def _unordered(self, left: tuple[Expression, ...], right: tuple[Expression, ...]) -> bool:
        """Return whether each item of one has an equal one in the other, and the reverse."""
        if max(len(left), len(right)) > _MOST_ITEMS:
            return False
        found = all(any(self._equal(one, other) for other in right) for one in left)
        return found and all(any(self._equal(one, other) for one in left) for other in right)

    def _relations(self, left: Expression, right: Expression) -> bool:
        if left.value != right.value:
            return False
        if left.value == "!=" or left.value in ("<", "<="):
            same = self._ordered(left.args, right.args)
            swapped = left.value == "!=" and self._ordered(left.args, right.args[::-1])
            return same or swapped
        ours, theirs = (
            Expression("add", (it.args[0], negative(it.args[1]))) for it in (left, right)
        )
        factor = quotient(ours, theirs)
        names = factor.symbols()
        if not names or ours.symbols() != theirs.symbols():
            return self._expressions(ours, theirs)
        values = [value_of(factor, point) for point in points(names)]
        constant = all(agree(values[0], value) for value in values[1:]) and values[0] != 0
        # The factor is constant, not only near these points, if it does not change with a symbol.
        doubled = _renamed(factor)
        return constant and proved_equal(factor, doubled, self._limit_s)

    def _expressions(self, left: Expression, right: Expression) -> bool:
        exact = rational(left), rational(right)
        if None not in exact:
            return exact[0] == exact[1]
        names = left.symbols() | right.symbols()
        near = all(agree(value_of(left, point), value_of(right, point)) for point in points(names))
        return near and (left == right or proved_equal(left, right, self._limit_s))


def _in_base_unit(node: Expression, unit: Unit) -> Expression:
    return Expression("mul", (node, Expression("number", (), unit.factor)))


def _items(node: Expression) -> tuple[Expression, ...]:
    """Return what a bare list, a set or signs for plus or minus give, without names before it."""
    if node.op == "list" and node.value in ("", "{}"):
        values = [_value_side(item, number(0))[0] for item in node.args]
        return tuple(one for value in values for one in _chosen(value))
    return _chosen(node)


def _value_side(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Return both without `x =` before a value, where that is on one side or the same on both."""
    names = [_named(node) for node in (left, right)]
    if names[0] and names[1]:
        same = names[0] == names[1]
        return (left.args[1], right.args[1]) if same else (left, right)
    return (left.args[1] if names[0] else left), (right.args[1] if names[1] else right)


def _named(node: Expression) -> str:
    """Return the symbol before the equals sign of a node, or an empty text."""
    if node.op != "relation" or node.value != "=" or node.args[0].op != "symbol":
        return ""
    name = str(node.args[0].value)
    return "" if name in node.args[1].symbols() else name


def _as_interval(node: Expression, other: Expression) -> Expression:
    """Return an inequality of one symbol as an interval, where the other one is no inequality."""
    if other.op == "relation" or (other.op == "list" and other.value == "chain"):
        return node
    if node.op == "relation" and node.value in ("<", "<="):
        low, high = node.args
        if low.op == "symbol" and not high.symbols():
            return Expression(
                "list", (negative(_INFINITY), high), "(" + (")" if node.value == "<" else "]")
            )
        if high.op == "symbol" and not low.symbols():
            return Expression("list", (low, _INFINITY), ("(" if node.value == "<" else "[") + ")")
    if node.op == "list" and node.value == "chain" and len(node.args) == 2:
        first, second = node.args
        if first.args[1] == second.args[0] and first.args[1].op == "symbol":
            opening = "(" if first.value == "<" else "["
            closing = ")" if second.value == "<" else "]"
            return Expression("list", (first.args[0], second.args[1]), opening + closing)
    return node


def _chosen(node: Expression) -> tuple[Expression, ...]:
    """Return the expressions that the signs for plus or minus in a node stand for."""
    if node.op == "choice":
        found = tuple(one for arg in node.args for one in _chosen(arg))
    elif node.op in ("list", "relation", "matrix", "union"):
        return (node,)
    else:
        lists = [_chosen(arg) for arg in node.args]
        if all(len(it) == 1 for it in lists):
            return (node,)
        found = tuple(Expression(node.op, args, node.value) for args in product(*lists))
    if len(found) > _MOST_CHOICES:
        raise UnreadableError("too many signs for plus or minus")
    return found


def _renamed(node: Expression) -> Expression:
    """Return a node with other symbols."""
    if node.op == "symbol":
        return Expression("symbol", (), f"{node.value}'")
    return Expression(node.op, tuple(_renamed(arg) for arg in node.args), node.value)
