"""No module outside a family's folder knows the name of a variant.

A registry maps the names of a family to modules, and what a variant can do is asked of it. A
comparison with a name elsewhere would have to be found and changed for each further variant.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.algorithms.registry import CORRECTIONS, RECIPES
from rollart_flow.control.context.registry import CONTEXTS
from rollart_flow.control.schedule.schedules import SCHEDULES
from rollart_flow.engines.registry import ENGINES
from rollart_flow.envs.registry import ENVIRONMENTS
from rollart_flow.gateway.wires.registry import WIRES
from rollart_flow.harness.registry import AGENTS
from rollart_flow.sandbox.registry import SANDBOXES
from rollart_flow.serverless.transports.registry import REWARD_TRANSPORTS
from rollart_flow.trackers.registry import TRACKERS
from rollart_flow.trainers.registry import TRAINERS
from rollart_flow.weights.registry import WEIGHT_TRANSPORTS
from tests.code import PACKAGE, modules, tree

FAMILIES: dict[str, tuple[str, ...]] = {
    "engines": ENGINES.names(),
    "trainers": TRAINERS.names(),
    "weights": WEIGHT_TRANSPORTS.names(),
    "serverless/transports": REWARD_TRANSPORTS.names(),
    "sandbox": SANDBOXES.names(),
    "envs": ENVIRONMENTS.names(),
    "algorithms": (*RECIPES.names(), *CORRECTIONS.names()),
    "gateway/wires": WIRES.names(),
    "control/schedule": SCHEDULES.names(),
    "control/context": CONTEXTS.names(),
    "harness": AGENTS.names(),
    "trackers": TRACKERS.names(),
}
"""Names of the variants of each family, by its folder."""

OTHER_MEANINGS = {
    ("cli/completion.py", "bash"): "name of a shell",
    ("rewards/math/atoms.py", "pi"): "the number",
    ("store/s3/access.py", "http"): "scheme of the endpoint of an object store",
    ("rewards/completions.py", "http"): "scheme of the address of a judge",
    ("rewards/completions.py", "https"): "scheme of the address of a judge",
    ("metrics/row_range.py", "messages"): "name of a column of trajectories",
    ("metrics/window.py", "messages"): "name of a column of trajectories",
    ("operators/ray_data.py", "ipc"): "name of a column of packed rows",
    ("serverless/transports/local.py", "local"): "scheme of a reward's URL, in its own folder",
}
"""Comparisons with a text that is also the name of a variant but means something else."""


def dotted(path: Path) -> str:
    return ".".join(("rollart_flow", *path.relative_to(PACKAGE).with_suffix("").parts))


def texts(node: ast.AST) -> set[str]:
    return {
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def constants(tree: ast.Module) -> dict[str, set[str]]:
    """Texts in the value of each constant that a module assigns at its top."""
    found: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            plain = not any(isinstance(part, ast.Call) for part in ast.walk(node.value))
            for target in targets:
                if isinstance(target, ast.Name) and plain:
                    found[target.id] = texts(node.value)
    return found


@cache
def trees() -> dict[Path, ast.Module]:
    """The code of the package, by module."""
    return {path: tree(path) for path in modules()}


@cache
def all_constants() -> dict[str, dict[str, set[str]]]:
    """Texts in the constants of each module of the package, by its dotted name."""
    return {dotted(path): constants(tree) for path, tree in trees().items()}


def known(tree: ast.Module, module: str) -> dict[str, set[str]]:
    """Texts in each constant that a module defines or imports, by the name it uses."""
    names = dict(all_constants().get(module, constants(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in all_constants():
            for alias in node.names:
                names[alias.asname or alias.name] = all_constants()[node.module].get(
                    alias.name, set()
                )
    return names


def operands(tree: ast.Module) -> Iterator[tuple[int, ast.expr]]:
    """(line, expression) of everything that is compared, matched or used to look up a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from ((node.lineno, part) for part in (node.left, *node.comparators))
        elif isinstance(node, ast.MatchValue):
            yield node.lineno, node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("startswith", "endswith", "removeprefix"):
                yield from ((node.lineno, part) for part in node.args)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name | ast.Dict):
            yield node.lineno, node.value


def compared(tree: ast.Module, module: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every text that a module compares with something."""
    names = known(tree, module)
    for line, operand in operands(tree):
        found = texts(operand)
        for part in ast.walk(operand):
            if isinstance(part, ast.Name):
                found |= names.get(part.id, set())
        yield from ((line, text.removesuffix("://")) for text in sorted(found))


@cache
def all_compared() -> list[tuple[str, int, str]]:
    """(module, line, text) of every text that a module of the package compares with something."""
    return [
        (path.relative_to(PACKAGE).as_posix(), line, text)
        for path, tree in trees().items()
        for line, text in compared(tree, dotted(path))
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_folder_of_a_family_compares_with_its_names(family: str) -> None:
    found = [
        f"rollart_flow/{place}:{line} compares with {text!r}"
        for place, line, text in all_compared()
        if not place.startswith(f"{family}/")
        if text in FAMILIES[family] and (place, text) not in OTHER_MEANINGS
    ]
    assert not found


def test_what_is_excepted_is_there() -> None:
    there = {(place, text) for place, _, text in all_compared()}
    assert OTHER_MEANINGS.keys() <= there


@pytest.mark.parametrize(
    "code",
    [
        'if policy.engine == "vllm": pass',
        'if train.weights in ("nccl", "ipc", "vllm"): pass',
        'match backend:\n    case "vllm": pass',
        '_GPU = ("vllm",)\nif name not in _GPU: pass',
        '{"embedded": 1, "vllm": 2}[name]',
        '_UNITS = {"vllm": 2}\n_UNITS[name]',
        'name.startswith("vllm://")',
    ],
)
def test_each_way_to_compare_is_found(code: str) -> None:
    tree: Any = ast.parse(code)
    assert "vllm" in {text for _, text in compared(tree, "elsewhere")}


def test_an_imported_constant_is_found() -> None:
    tree = ast.parse("from rollart_flow.engines.vllm.process import TRANSFER\nname == TRANSFER")
    assert {text for _, text in compared(tree, "elsewhere")} == {"rollart"}
