"""A package with the interface of SkyRL-Gym, for quick tests: registry, make, init, step, close.

It stands for the real one, which does not install beside this library; `test_real_venvs.py` runs
that one in a virtual environment of its own.
"""

import importlib
from types import SimpleNamespace
from typing import Any

_PLACES: dict[str, str] = {}
envs = SimpleNamespace(registration=SimpleNamespace(registry=_PLACES))


def register(id: str, entry_point: str) -> None:
    _PLACES[id] = entry_point


def make(id: str, env_config: Any, extras: dict[str, Any]) -> Any:
    module, _, name = _PLACES[id].partition(":")
    return getattr(importlib.import_module(module), name)(env_config, extras)
