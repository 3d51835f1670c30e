"""Copies of a task's tests that raise a random text once they have got to their ends.

A test that passes runs to its end, so that its copy fails with the text. Where a copy passes,
failures are no longer reported. Only tests are copied whose last line is their only end, and whose
decorators let exceptions through.
"""

import ast
import secrets
from collections.abc import Iterator, Mapping, Sequence

from rollart_flow.envs.swe.file_tree import FileTree

_HARMLESS = ("parametrize", "usefixtures", "patch", "object", "dict", "multiple")
"""Last names of decorators under which a raised exception is still a failure."""


def copied_tests(
    tree: FileTree, path: str, tests: Sequence[str]
) -> tuple[str, dict[str, str]] | None:
    """Return a test file whose wanted tests raise a text at their ends, with the texts by test.

    None if the file cannot be read, or none of the tests is one whose end is its last line.
    """
    try:
        module = ast.parse(tree[path].data)
    except (KeyError, SyntaxError, ValueError, RecursionError):
        return None
    raised: dict[str, str] = {}
    changed: dict[int, str] = {}
    for test in tests:
        found = _function(module, test.partition("::")[2].partition("[")[0].split("::"))
        if found is None:
            continue
        if id(found) not in changed:
            changed[id(found)] = secrets.token_hex(8)
            found.body += ast.parse(f"raise ValueError({changed[id(found)]!r})").body
        raised[test] = changed[id(found)]
    if not raised:
        return None
    _drop_other_tests(module, changed)
    return ast.unparse(ast.fix_missing_locations(module)), raised


def _function(module: ast.Module, names: Sequence[str]) -> ast.FunctionDef | None:
    """Return the function of a test if a text raised at its end is a failure of the test."""
    body: list[ast.stmt] = module.body
    for name in names[:-1]:
        groups = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
        if len(groups) != 1 or groups[0].decorator_list:
            return None
        body = groups[0].body
    functions = [node for node in body if getattr(node, "name", None) == names[-1]]
    if len(functions) != 1 or not isinstance(functions[0], ast.FunctionDef):
        return None
    function = functions[0]
    harmless = all(_last_name(each) in _HARMLESS for each in function.decorator_list)
    return function if harmless and not _leaves_early(function) else None


def _last_name(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(called, "attr", getattr(called, "id", ""))


def _leaves_early(function: ast.FunctionDef) -> bool:
    """Whether a function may end before its last line, or is a generator."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return False


def _drop_other_tests(module: ast.Module, kept: Mapping[int, str]) -> None:
    """Leave out functions that only pytest calls, so that no test of the task runs twice."""
    used = {name for node in ast.walk(module) for name in _names_in(node)}

    def is_left_out(node: ast.stmt) -> bool:
        return (
            isinstance(node, ast.FunctionDef)
            and node.name.startswith("test")
            and id(node) not in kept
            and node.name not in used
        )

    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    for body in (module.body, *(node.body for node in classes)):
        body[:] = [node for node in body if not is_left_out(node)] or [ast.Pass()]


def _names_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
