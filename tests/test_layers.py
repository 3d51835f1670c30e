"""Imports point downward only, also those within functions and those for type checkers; no module
is long."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.code import PACKAGE, modules, tree

LAYERS = (
    (
        "blocked", "errors", "types", "episodes", "episode_rows", "schema", "rows", "telemetry",
        "calls", "validation", "fields", "registry", "exports", "former_modules", "retries",
        "secret", "text", "verdict_rows", "exchange_rows", "attempt_rows", "request_heads",
        "request_hosts", "timeouts", "shares",
    ),
    ("control", "isolation", "gateway.core"),
    ("store",),
    ("models", "sandbox", "gateway"),
    ("rewards", "serverless"),
    ("resources",),
    ("engines", "trainers", "weights", "envs", "algorithms", "harness", "metrics", "trackers"),
    ("operators",),
    ("pipeline", "runner", "replay", "simulation", "analysis", "exporting", "importing",
     "checking", "views"),
    ("cli", "ui"),
)  # fmt: skip
"""From the lowest up. Rooms of one layer may import each other."""

CONTROL_NEVER_IMPORTS = {
    "ray", "torch", "polars", "deltalake", "pyarrow", "time", "threading", "multiprocessing",
    "subprocess", "socket", "pathlib", "os",
}  # fmt: skip
"""The control plane is pure asyncio: no Ray, no torch, no I/O, time only through the loop."""


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a module imports anywhere in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            if node.module == "rollart_flow":
                yield from ((node.lineno, f"rollart_flow.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def room(path: Path) -> str:
    """The top-level module or package of the library that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def level(name: str) -> int:
    """The layer of a dotted name below the package: that of its folder, if that has one."""
    room, _, inner = name.partition(".")
    names = (f"{room}.{inner.split('.')[0]}", room)
    layers = ((i, each) for each in names for i, rooms in enumerate(LAYERS) if each in rooms)
    return next(index for index, _ in layers)


def test_every_room_has_a_layer() -> None:
    known = {name for rooms in LAYERS for name in rooms} | {"__init__"}
    assert {room(path) for path in modules()} <= known


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downward(path: Path) -> None:
    here = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    if here == "__init__":
        return  # the root names what users import, from wherever it is defined
    upward = [
        f"{path}:{line} imports {name}"
        for line, name in imports(path)
        if name.startswith("rollart_flow.")
        and level(name.removeprefix("rollart_flow.")) > level(here)
    ]
    assert not upward


@pytest.mark.parametrize(
    "path",
    [*modules(PACKAGE / "control"), *modules(PACKAGE / "gateway" / "core")],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_control_is_pure_asyncio(path: Path) -> None:
    impure = [
        f"{path}:{line} imports {name}"
        for line, name in imports(path)
        if name.split(".")[0] in CONTROL_NEVER_IMPORTS
    ]
    assert not impure


def test_the_vocabulary_needs_no_ray_and_no_torch() -> None:
    for path in (path for path in modules() if room(path) in LAYERS[0]):
        found = {module.split(".")[0] for _, module in imports(path)}
        assert not found & {"ray", "torch", "transformers", "vllm"}, path


CONTROL_ORDER = (
    "environment", "protocols", "ids", "loop", "schedule", "buffer", "scheduler", "inference",
    "context", "rollout", "training", "recovery", "plane",
)  # fmt: skip
"""Rooms of the control plane from the lowest up. Each imports only itself and those before it."""


TRAINERS_ORDER = (
    "eager_adamw", "optimizer", "variant", "registry", "layout", "settings", "batch", "ranks",
    "checkpoint", "base", "step", "backends", "build", "examples", "warm_start", "worker",
)  # fmt: skip
"""Rooms of the trainers from the lowest up, like `CONTROL_ORDER`."""


@pytest.mark.parametrize(
    ("package", "order"), [("control", CONTROL_ORDER), ("trainers", TRAINERS_ORDER)]
)
def test_rooms_of_a_package_import_only_those_below_them(
    package: str, order: tuple[str, ...]
) -> None:
    folder = PACKAGE / package
    backward = []
    for path in modules(folder):
        here = path.relative_to(folder).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        below = {*order[: order.index(here)], here}
        backward += [
            f"{path}:{line} imports {name}"
            for line, name in imports(path)
            if name.startswith(f"rollart_flow.{package}.") and name.split(".")[2] not in below
        ]
    assert not backward


def test_no_modules_import_each_other() -> None:
    """Not even within functions or for type checkers: a session knows no domain, and so on."""
    names = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in modules()
    }
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        nodes = ast.walk(tree(path))
        found = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
        parts = {f"{node.module}.{alias.name}" for node in found for alias in node.names}
        graph[name] = (parts | {str(node.module) for node in found}) & names.keys()
    assert len(graph) > 900
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_no_module_is_longer_than_a_reader_takes_in() -> None:
    long = {
        f"{path.relative_to(PACKAGE)}: {lines} lines, 300 at most"
        for path in modules()
        if (lines := len(path.read_text().splitlines())) > 300
    }
    assert not long
