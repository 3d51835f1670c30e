"""Files that decide the outcome of a task's tests: they come from the task, never the agent.

Tests, their helpers and data beside them, `conftest.py`, and modules that Python or pytest would
load by themselves.
"""

from rollart_flow.envs.swe.file_tree import FileTree, TreeFile

_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_LOADED_BY_NAME = frozenset({
    "conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", ".pytest.ini", "tox.ini",
    "pytest.py", "noxfile.py",
})  # fmt: skip
_LOADED_BY_SUFFIX = (".pth", ".egg-link")
_LOADED_FOLDERS = (".dist-info", ".egg-info")
# Not pyproject.toml and setup.cfg, which have a section for pytest: an agent may change them, since
# the verifier names a configuration of its own, which is made from those of the task.


def is_test_path(path: str) -> bool:
    """Whether a file is a test, or lies beside tests."""
    *folders, name = path.split("/")
    if _TEST_FOLDERS.intersection(folders):
        return True
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def is_protected(path: str) -> bool:
    """Whether a file can change the outcome of tests by its place or name."""
    *folders, name = path.split("/")
    return (
        is_test_path(path)
        or name in _LOADED_BY_NAME
        or name.endswith(_LOADED_BY_SUFFIX)
        or any(folder.endswith(_LOADED_FOLDERS) for folder in folders)
    )


def without_tests(tree: FileTree) -> dict[str, TreeFile]:
    """Return a tree without its tests, as an agent may be shown it."""
    return {path: file for path, file in tree.items() if not is_test_path(path)}


def with_task_files(tree: FileTree, task: FileTree) -> dict[str, TreeFile]:
    """Return a tree whose protected files are exactly those of the task."""
    kept = {path: file for path, file in tree.items() if not is_protected(path)}
    return kept | {path: file for path, file in task.items() if is_protected(path)}
