"""The program that runs tests in a box and signs what it saw of each one.

`runner_folder` copies it beside pytest, and a box starts it as `python3 -I -S -B`, so it imports
nothing of this library. It reads a `RunRequest` as JSON from stdin, and appends lines to a file of
results: an HMAC under the key of the request, a blank, and JSON. The key is never in a file, an
argument or a variable of the environment. The first line is written before any tested code is
loaded, the last one after the session.

Tested code shares this process. What it prints, how it exits and what it patches is no result:

- a line without the right HMAC counts for nothing, and a test without a line has not passed;
- functions and classes of pytest, pluggy and unittest must be those that were loaded before any
  tested code, whenever a line is written;
- an audit hook, which cannot be removed, notes code that searches the memory of the process.
"""

import hashlib
import hmac
import json
import operator
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, TypeAlias, TypedDict


class RunRequest(TypedDict):
    """The request that standard input holds."""

    key: str
    """Key of the HMAC, in hex digits."""
    results: str
    """File of results, which must not exist."""
    site: str
    """Folder with pytest."""
    root: str
    """Folder with the files of the task."""
    paths: list[str]
    """Folders from which the tests import."""
    arguments: list[str]
    """Arguments of pytest."""


_SEARCHES = frozenset({
    "gc.get_objects", "gc.get_referrers", "gc.get_referents", "ctypes.dlopen", "ctypes.dlsym",
    "ctypes.addressof", "ctypes.string_at",
})  # fmt: skip
_GUARDED = frozenset({"_pytest", "pluggy", "pytest", "unittest"})
_JUDGING_HOOKS = (
    "pytest_runtest_makereport", "pytest_runtest_protocol", "pytest_runtest_call",
    "pytest_pyfunc_call",
)  # fmt: skip
_REPLACED_BY_PYTEST = frozenset({"_getini_unknown_type"})
"""Methods that pytest's own plugins replace."""
_MESSAGE_CHARACTERS = 300


def signer(key: str, path: str) -> Callable[[dict[str, object]], None]:
    """Return a function that appends signed lines to a new file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    keyed = hmac.new(bytes.fromhex(key), digestmod=hashlib.sha256)
    write, dumps = os.write, json.dumps  # tested code may replace those of the modules
    count = 0

    def sign(record: dict[str, object]) -> None:
        nonlocal count
        text = dumps({**record, "number": count})
        signed = keyed.copy()
        signed.update(text.encode())
        write(descriptor, f"{signed.hexdigest()} {text}\n".encode())
        count += 1

    return sign


class Guard:
    """Knows pytest as it was before tested code was loaded."""

    def __init__(self) -> None:
        self.searched: set[str] = set()
        """Events of tested code that searches memory."""
        self.armed = False
        self._owners = [*_owners()]
        functions = {
            id(value): value
            for _, _, _, values in self._owners
            for value in values
            if isinstance(value, FunctionType)
        }
        self._functions = tuple(functions.values())
        self._codes = tuple(function.__code__ for function in self._functions)
        sys.addaudithook(self._watch)

    def replaced(self, config: Any) -> list[str]:
        """Return what tested code has replaced or added; at most a few names."""
        found = []
        for owner, held, names, values in self._owners:
            # Compared by identity, in C: this runs after every test, over thousands of values.
            if not all(map(operator.is_, map(held.get, names), values)):
                changed = zip(names, values, strict=True)
                found += [f"{owner}.{name}" for name, old in changed if held.get(name) is not old]
        codes = map(operator.attrgetter("__code__"), self._functions)
        if not all(map(operator.is_, codes, self._codes)):
            found.append("the code of a function")
        for hook in _JUDGING_HOOKS:
            for implementation in getattr(config.hook, hook).get_hookimpls():
                if not _is_trusted(implementation.plugin):
                    found.append(f"a plugin for {hook}")
        return found[:5]

    def _watch(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.armed:
            return
        if event in _SEARCHES:
            self.searched.add(event)
        elif event == "open" and str(arguments[0]).startswith("/proc/"):
            self.searched.add("open /proc")


_Owner: TypeAlias = tuple[str, Mapping[str, object], tuple[str, ...], tuple[object, ...]]
"""Name of a module or class, its attributes, and the names and values that must not change."""


def _owners() -> Iterator[_Owner]:
    """Yield the modules and classes of pytest with their functions and classes."""
    classes: dict[type, None] = {}
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and _is_guarded(module.__name__):
            yield _owner(module.__name__, vars(module), (FunctionType, type))
            inner = [value for value in vars(module).values() if isinstance(value, type)]
            classes |= {kind: None for kind in inner if _is_guarded(kind.__module__)}
    for kind in classes:
        methods = (FunctionType, property, classmethod, staticmethod)
        yield _owner(kind.__name__, vars(kind), methods)


def _owner(name: str, held: Mapping[str, object], kinds: tuple[type, ...]) -> _Owner:
    known = {
        key: value
        for key, value in held.items()
        if isinstance(value, kinds) and key not in _REPLACED_BY_PYTEST
    }
    return name, held, tuple(known), tuple(known.values())


def _is_guarded(module: str) -> bool:
    return module.partition(".")[0] in _GUARDED


def _is_trusted(plugin: object) -> bool:
    """Whether a plugin is pytest's own, this program's, or a `conftest.py`, which is the task's."""
    if isinstance(plugin, ModuleType):
        file = getattr(plugin, "__file__", None) or ""
        return _is_guarded(plugin.__name__) or file.endswith("/conftest.py")
    return isinstance(plugin, ResultPlugin) or _is_guarded(type(plugin).__module__)


class ResultPlugin:
    """A plugin of pytest that signs the outcome of each test."""

    def __init__(self, sign: Callable[[dict[str, object]], None], guard: Guard) -> None:
        self._sign, self._guard = sign, guard
        self._outcome, self._seconds, self._message = "passed", 0.0, ""

    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, Any]:
        """Note the outcome of one phase of a test, and sign the test after its last phase."""
        report = yield
        if call.when == "setup":
            self._outcome, self._seconds, self._message = "passed", 0.0, ""
        self._seconds += call.duration
        if self._outcome == "passed":
            raised = call.excinfo is not None
            # A failure that was expected is no pass.
            self._outcome = "failed" if raised and report.outcome == "passed" else report.outcome
            crash = getattr(report.longrepr, "reprcrash", None)
            self._message = str(getattr(crash, "message", "") or "")[:_MESSAGE_CHARACTERS]
        if call.when == "teardown":
            self._finish(item)
        return report

    def pytest_collectreport(self, report: Any) -> None:
        """Note why a file could not be loaded."""
        if report.failed:
            lines = str(report.longrepr).strip().splitlines()
            said = lines[-1][:_MESSAGE_CHARACTERS] if lines else ""
            self._sign({"collect": report.nodeid, "message": said})

    def _finish(self, item: Any) -> None:
        record: dict[str, object] = {
            "test": item.nodeid,
            "outcome": self._outcome,
            "seconds": round(self._seconds, 4),
            "message": self._message,
            "replaced": self._guard.replaced(item.config),
            "searched": sorted(self._guard.searched),
        }
        self._sign(record)


def main() -> None:
    """Run the tests that stdin describes."""
    request: RunRequest = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path.append(request["site"])
    pytest = _loaded_pytest()
    guard = Guard()
    sign = signer(request.pop("key"), request["results"])  # type: ignore[misc]  # forgets it
    hook = pytest.hookimpl(wrapper=True, tryfirst=True)
    ResultPlugin.pytest_runtest_makereport = hook(  # type: ignore[method-assign]  # pytest comes late
        ResultPlugin.pytest_runtest_makereport
    )
    sys.path.extend(request["paths"])
    os.chdir(request["root"])
    sign({"begins": sys.version})
    guard.armed = True
    code = pytest.main(request["arguments"], plugins=[ResultPlugin(sign, guard)])
    sign({"ends": int(code)})
    os._exit(0)  # nothing runs that was registered for the exit


def _loaded_pytest() -> Any:
    """Load pytest, with what it loads later by itself, so that none of it is the task's."""
    import unittest.case
    import unittest.mock  # noqa: F401  loaded for tests that patch
    from importlib import import_module

    for name in import_module("_pytest.config").default_plugins:
        import_module(f"_pytest.{name}")
    return import_module("pytest")


if __name__ == "__main__":
    main()
