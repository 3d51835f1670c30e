"""References to user code for another process, by module, name and source file.

Code that can be found by name is never copied, so that both processes run the same source. A class
or function of a pipeline file, whose module the other process cannot import, is loaded from the
file. Code without a name (a lambda, a closure) is copied by Ray's cloudpickle. An instance is
pickled with references to its class and to the classes and functions that it holds: settings of the
library, such as a frozen dataclass, need no Ray.

Invariant: references are made by the process that trusts the code and resolved by its child; a
parent never resolves a reference that came from a child.
"""

import base64
import importlib.util
import io
import pickle
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType

_MAIN = "__main__"
_MAIN_COPY = "__rollart_main__"
"""Name under which a script is loaded, so that its `if __name__ == "__main__"` does not run."""


def reference(target: object, source: Path | None = None) -> dict[str, str]:
    """Return a JSON reference to a class, a function, or an instance that pickles.

    `source` is the file of its module, if this process received the target by value.
    """
    if not hasattr(target, "__qualname__"):
        return _instance(target, source)
    module = getattr(target, "__module__", None) or ""
    qualname = target.__qualname__
    loaded = sys.modules.get(module)
    if _find(loaded, qualname) is target:
        source = getattr(loaded, "__file__", None)
    elif source is None or "<" in qualname:
        return {"pickled": _pickled(target)}
    if source is None and module == _MAIN:
        return {"pickled": _pickled(target)}
    return {"module": module, "qualname": qualname, "source": str(source or "")}


def resolve(where: Mapping[str, str]) -> object:
    """Return the class, function or instance of a reference; import its modules.

    Raises:
        ImportError: there is no such module and no such file.
        AttributeError: the module does not have the name.
    """
    if "pickled" in where:
        from ray import cloudpickle

        found: object = cloudpickle.loads(base64.b64decode(where["pickled"]))
        return found
    if "instance" in where:
        return _Resolving(io.BytesIO(base64.b64decode(where["instance"]))).load()
    module = _module(where["module"], where["source"])
    found = _find(module, where["qualname"])
    if found is None:
        raise AttributeError(f"{where['module']} ({module.__file__}) has no {where['qualname']}")
    return found


class _Naming(pickle.Pickler):
    """Pickles an instance; classes and functions in it become references."""

    def __init__(self, file: io.BytesIO, source: Path | None) -> None:
        super().__init__(file)
        self._source = source

    def persistent_id(self, part: object) -> dict[str, str] | None:
        """Return the reference of a class or function; None pickles anything else as it is."""
        return reference(part, self._source) if isinstance(part, type | FunctionType) else None


class _Resolving(pickle.Unpickler):
    """The unpickler for instances written by `_Naming`."""

    def persistent_load(self, where: dict[str, str]) -> object:
        """Return the class or function of a reference."""
        return resolve(where)


def _instance(target: object, source: Path | None) -> dict[str, str]:
    data = io.BytesIO()
    try:
        _Naming(data, source).dump(target)
    except (pickle.PicklingError, AttributeError, TypeError):  # only cloudpickle can pickle it
        return {"pickled": _pickled(target)}
    return {"instance": base64.b64encode(data.getvalue()).decode()}


def _find(module: ModuleType | None, qualname: str) -> object | None:
    found: object | None = module
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def _module(name: str, source: str) -> ModuleType:
    if name == _MAIN:
        sys.modules[_MAIN] = _load(_MAIN_COPY, source)
        return sys.modules[_MAIN]
    if name in sys.modules or not source or _origin(name) == Path(source).resolve():
        return importlib.import_module(name)
    return _load(name, source)


def _origin(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def _load(name: str, source: str) -> ModuleType:
    loader = SourceFileLoader(name, source)
    spec = importlib.util.spec_from_loader(name, loader)
    if spec is None:
        raise ImportError(f"cannot load {name} from {source}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def _pickled(target: object) -> str:
    from ray import cloudpickle

    return base64.b64encode(cloudpickle.dumps(target)).decode()
