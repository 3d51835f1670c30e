"""Answers that a scorer may evaluate as an expression without running a model's code.

Some scorers of packages pass the text of an answer to `eval`, or to SymPy's parser, which does so.
Only literals, operators, names and functions of mathematics may reach them.
"""

import ast
from enum import StrEnum

_FUNCTIONS = (
    "Abs abs acos acosh asin asinh atan atanh cos cosh cot csc exp log ln sec sin sinh sqrt tan "
    "tanh"
)
MATH_FUNCTIONS = frozenset(_FUNCTIONS.split())
"""Names of functions that an answer may call with numbers and names."""

_PLAIN = (
    ast.Expression,
    ast.Constant,
    ast.Name,
    ast.expr_context,
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Dict,
    ast.UnaryOp,
    ast.unaryop,
    ast.BinOp,
    ast.operator,
    ast.BoolOp,
    ast.boolop,
    ast.Compare,
    ast.cmpop,
    ast.Call,
)


class AnswerKind(StrEnum):
    """The form of an answer, read as Python."""

    PLAIN = "plain"
    """An expression that runs nothing but arithmetic."""
    CODE = "code"
    """An expression that could run anything."""
    TEXT = "text"
    """No expression."""


def answer_kind(text: str) -> AnswerKind:
    """Return what the text of an answer is to Python."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return AnswerKind.TEXT
    plain = all(isinstance(node, _PLAIN) and _is_plain_call(node) for node in ast.walk(tree))
    return AnswerKind.PLAIN if plain else AnswerKind.CODE


def _is_plain_call(node: ast.AST) -> bool:
    """Return whether a node is no call, or calls a function of mathematics with numbers."""
    if not isinstance(node, ast.Call):
        return True
    known = isinstance(node.func, ast.Name) and node.func.id in MATH_FUNCTIONS
    texts = (n for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return known and not node.keywords and next(texts, None) is None
