"""The configuration with which a verifier runs pytest, made from that of a task's own files.

Only settings that say which functions are tests and which markers exist are taken over. Options of
the command line, plugins and warnings are not: they need what a box does not have.
"""

import tomllib
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError

from rollart_flow.envs.swe.file_tree import FileTree

_TAKEN_OVER = (
    "python_files", "python_classes", "python_functions", "markers", "xfail_strict",
    "doctest_optionflags",
)  # fmt: skip
_INI_FILES = (("pytest.ini", "pytest"), (".pytest.ini", "pytest"), ("tox.ini", "pytest"))


def pytest_ini(tree: FileTree) -> str:
    """Return an ini file for pytest with the task's own settings of tests."""
    lines = ["[pytest]"]
    for key, value in task_settings(tree).items():
        if key in _TAKEN_OVER:
            inner = [line.strip() for line in value.splitlines() if line.strip()]
            lines.append(f"{key} =" + "".join(f"\n    {line}" for line in inner))
    return "\n".join(lines) + "\n"


def import_roots(tree: FileTree) -> tuple[str, ...]:
    """Return the folders from which a task's tests import, relative to its root."""
    declared = task_settings(tree).get("pythonpath", "").split()
    found = [path.strip("/") for path in declared if not path.startswith("/") and ".." not in path]
    if any(path.startswith("src/") and path.endswith(".py") for path in tree):
        found.append("src")
    return tuple(dict.fromkeys((".", *found)))


def task_settings(tree: FileTree) -> dict[str, str]:
    """Return pytest's settings of the first file that has some; lists have a line for each."""
    for name, section in _INI_FILES:
        if found := _ini_section(tree, name, section):
            return found
    if found := _toml_section(tree):
        return found
    return _ini_section(tree, "setup.cfg", "tool:pytest")


def _ini_section(tree: FileTree, name: str, section: str) -> dict[str, str]:
    if name not in tree:
        return {}
    parser = ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(tree[name].data.decode(errors="replace"))
    except ConfigError:
        return {}
    return dict(parser[section]) if parser.has_section(section) else {}


def _toml_section(tree: FileTree) -> dict[str, str]:
    if "pyproject.toml" not in tree:
        return {}
    try:
        whole = tomllib.loads(tree["pyproject.toml"].data.decode(errors="replace"))
    except tomllib.TOMLDecodeError:
        return {}
    found = whole.get("tool", {}).get("pytest", {}).get("ini_options", {})
    if not isinstance(found, Mapping):
        return {}
    return {
        str(key): "\n".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in found.items()
    }
