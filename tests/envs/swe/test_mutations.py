"""Faults are small, seeded elsewhere, and leave the rest of a file as it was."""

import ast

import pytest

from rollart_flow.envs.swe.mutations import OPERATORS, Mutation, mutations
from tests.envs.swe.tiny import SOURCE

CODE = b'''"""A module."""
LIMIT = 3 < 4


def f(a, b=1):
    """A text with 1 < 2."""
    if not a and b is not None:  # caf\xc3\xa9
        c = (a) + b
        g(a, b)
        c += 1
    return a, c in (1, True)
'''


def made(code: bytes, operator: str) -> set[str]:
    """Lines that a kind of fault gives."""
    found = set()
    for mutation in mutations("m.py", code):
        if mutation.operator == operator:
            lines = mutation.applied(code).splitlines()
            found.add(lines[mutation.line - 1].decode().strip())
    return found


@pytest.mark.parametrize(
    ("operator", "lines"),
    [
        (
            "comparison",
            {"if not a and b is None:  # café", "return a, c not in (1, True)"},
        ),
        ("boolean", {"if not a or b is not None:  # café"}),
        ("arithmetic", {"c = (a) - b"}),
        ("negation", {"if a and b is not None:  # café"}),
        (
            "off_by_one",
            {"c += 2", "c += 0", "return a, c in (2, True)", "return a, c in (0, True)"},
        ),
        ("flag", {"return a, c in (1, False)"}),
        ("return_value", {"return None", "return (c in (1, True), a)"}),
        ("removed_branch", {"if False:  # café"}),
        ("removed_statement", {"pass"}),
        ("swapped_arguments", {"g(b, a)"}),
    ],
)
def test_each_kind_of_fault_is_made_within_functions(operator: str, lines: set[str]) -> None:
    assert made(CODE, operator) == lines


def test_every_kind_is_tested_above_and_every_fault_changes_the_syntax_tree() -> None:
    found = mutations("m.py", SOURCE.encode())
    assert len(found) > 10
    original = ast.dump(ast.parse(SOURCE))
    for mutation in found:
        changed = mutation.applied(SOURCE.encode())
        assert ast.dump(ast.parse(changed)) != original
        assert mutation.operator in OPERATORS
    assert len(set(found)) == len(found)


def test_a_file_that_does_not_parse_has_no_fault() -> None:
    assert mutations("m.py", b"def f(:\n") == []
    assert mutations("m.py", b"\xff\xfe") == []


def test_a_fault_replaces_one_piece() -> None:
    assert Mutation("flag", "m.py", 1, 4, 5, "22").applied(b"x = 1\n") == b"x = 22\n"
