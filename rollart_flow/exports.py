"""Names that a package exports and imports when they are first used (PEP 562).

    __getattr__, __dir__ = lazy_exports(__name__, {"run": "Run open_run"})

A process that uses only the light modules of a package never loads the libraries of the others. A
name that is also the name of its module must be imported eagerly instead, because the import system
binds the module under that name.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, exports: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    Args:
        package: `__name__` of the package.
        exports: the names that each module within the package defines; "" for modules themselves.
    """
    homes = {name: home for home, names in exports.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes[name]:
            return import_module(f"{package}.{name}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
