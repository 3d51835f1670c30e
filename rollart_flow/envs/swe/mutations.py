"""Small faults in Python code, each made by replacing one piece of its text.

The rest of the file keeps its form, comments included. Faults are found by the syntax tree, inside
of functions only, so that a mutated module can still be imported.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault: a piece of a file in bytes, and the text in its place."""

    operator: str
    path: str
    line: int
    """Line of the piece, from 1."""
    start: int
    end: int
    text: str

    def applied(self, data: bytes) -> bytes:
        """Return the contents of the file with the fault."""
        return data[: self.start] + self.text.encode() + data[self.end :]


_Piece: TypeAlias = tuple[int, int, int, str]
"""Line, first byte, byte after the last one, new text."""

_COMPARISONS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not",
    "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip
_ARITHMETIC = {
    "+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "+", "<<": ">>", ">>": "<<", "&": "|",
    "|": "&",
}  # fmt: skip
_BETWEEN = re.compile(r"^([\s)]*)(is +not|not +in|[a-z]+|[^\s\w()]+)[\s(]*$")
"""An operator between two operands, with brackets of theirs."""
_BOOLEAN = {"and": "or", "or": "and"}


class _Source:
    """A parsed file, with the places of its nodes in bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.tree = ast.parse(data)
        self._lines = [0]
        for line in data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def begin(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def whole(self, node: ast.expr | ast.stmt, text: str) -> _Piece:
        """Replace a node."""
        return node.lineno, self.begin(node), self.end(node), text

    def between(self, left: ast.expr, right: ast.expr, new: dict[str, str]) -> _Piece | None:
        """Replace the operator between two nodes; None if it is not found there alone."""
        start = self.end(left)
        match = _BETWEEN.match(self.data[start : self.begin(right)].decode())
        if match is None:
            return None
        operator = " ".join(match[2].split())
        if operator not in new:
            return None
        line = self.data.count(b"\n", 0, start) + 1 + match[1].count("\n")
        return line, start + len(match[1]), start + len(match[1] + match[2]), new[operator]


def mutations(path: str, data: bytes) -> list[Mutation]:
    """Return all faults that can be made in a file, in the order of their places.

    Each gives a file that parses to another syntax tree. None for a file that does not parse.
    """
    try:
        source = _Source(data)
    except (SyntaxError, ValueError):
        return []
    original = ast.dump(source.tree)
    found = []
    for node in _inside_functions(source.tree):
        for operator, make in _OPERATORS:
            for line, start, end, text in make(source, node):
                mutation = Mutation(operator, path, line, start, end, text)
                if _differs(mutation.applied(data), original):
                    found.append(mutation)
    return sorted(set(found), key=lambda m: (m.start, m.end, m.operator, m.text))


def _differs(data: bytes, original: str) -> bool:
    try:
        return ast.dump(ast.parse(data)) != original
    except (SyntaxError, ValueError):
        return False


def _inside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of the bodies of functions, without decorators, defaults and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                if not (isinstance(statement, ast.Expr) and _is_text(statement.value)):
                    yield from ast.walk(statement)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _comparison(source: _Source, node: ast.AST) -> Iterator[_Piece]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        piece = source.between(node.left, node.comparators[0], _COMPARISONS)
        if piece is not None:
            yield piece


def _boolean(source: _Source, node: ast.AST) -> Iterator[_Piece]:
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        piece = source.between(node.values[0], node.values[1], _BOOLEAN)
        if piece is not None:
            yield piece


def _arithmetic(source: _Source, node: ast.AST) -> Iterator[_Piece]:
    if isinstance(node, ast.BinOp) and not (_is_text(node.left) or _is_text(node.right)):
        piece = source.between(node.left, node.right, _ARITHMETIC)
        if piece is not None:
            yield piece


def _negation(source: _Source, node: ast.AST) -> Iterator[_Piece]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = source.data[source.begin(node.operand) : source.end(node.operand)].decode()
        yield source.whole(node, inner)


def _off_by_one(source: _Source, node: ast.AST) -> Iterator[_Piece]:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 1000:
        yield source.whole(node, str(node.value + 1))
        if node.value > 0:
            yield source.whole(node, str(node.value - 1))


def _flag(source: _Source, node: ast.AST) -> Iterator[_Piece]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield source.whole(node, str(not node.value))


def _return_value(source: _Source, node: ast.AST) -> Iterator[_Piece]:
    if isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield source.whole(node.value, "None")
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
            first, second = (
                source.data[source.begin(part) : source.end(part)].decode()
                for part in node.value.elts
            )
            yield source.whole(node.value, f"({second}, {first})")


def _removed_branch(source: _Source, node: ast.AST) -> Iterator[_Piece]:
    if isinstance(node, ast.If):
        yield source.whole(node.test, "False")


def _removed_statement(source: _Source, node: ast.AST) -> Iterator[_Piece]:
    if isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield source.whole(node, "pass")


def _swapped_arguments(source: _Source, node: ast.AST) -> Iterator[_Piece]:
    if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
        first, second = node.args
        if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
            return
        texts = [source.data[source.begin(a) : source.end(a)].decode() for a in node.args]
        joint = source.data[source.end(first) : source.begin(second)].decode()
        start, end = source.begin(first), source.end(second)
        yield first.lineno, start, end, f"{texts[1]}{joint}{texts[0]}"


_Operator: TypeAlias = Callable[[_Source, ast.AST], Iterator[_Piece]]
_OPERATORS: Sequence[tuple[str, _Operator]] = (
    ("comparison", _comparison),
    ("boolean", _boolean),
    ("arithmetic", _arithmetic),
    ("negation", _negation),
    ("off_by_one", _off_by_one),
    ("flag", _flag),
    ("return_value", _return_value),
    ("removed_branch", _removed_branch),
    ("removed_statement", _removed_statement),
    ("swapped_arguments", _swapped_arguments),
)
OPERATORS = tuple(name for name, _ in _OPERATORS)
"""Names of the kinds of faults."""
