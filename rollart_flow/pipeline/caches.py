"""Cached functions of a pipeline file, in the form in which other processes get them.

`functools.cache` makes an object that is pickled as a name of its module, and no other process can
import the module of a pipeline file. The function is sent instead, and gets a cache there.
"""

import copyreg
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

_Cached = type(cache(lambda: None))


def send_caches_by_value() -> None:
    """Let cached functions whose module cannot be imported be pickled; others stay names."""
    copyreg.pickle(_Cached, _reduced)


def _reduced(cached: Any) -> str | tuple[Callable[..., Any], tuple[Any, ...]]:
    if cached.__module__ in sys.modules:
        return str(cached.__qualname__)
    return _cached_again, (cached.__wrapped__, cached.cache_parameters())


def _cached_again(function: Callable[..., Any], settings: dict[str, Any]) -> Any:
    return lru_cache(**settings)(function)
