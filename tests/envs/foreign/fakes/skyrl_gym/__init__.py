"""A package with the interface of SkyRL-Gym, for quick tests: registry, make, init, step, close.

It stands for the real one, which does not install beside this library; `test_real_packages.py` runs
that one in a virtual environment of its own.
"""

import importlib
from typing import Any

from skyrl_gym import envs as envs
from skyrl_gym.envs.registration import registry


def register(id: str, entry_point: str) -> None:
    registry[id] = entry_point


def make(id: str, env_config: Any, extras: dict[str, Any]) -> Any:
    module, _, name = registry[id].partition(":")
    return getattr(importlib.import_module(module), name)(env_config, extras)
