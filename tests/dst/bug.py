"""`Bug`: a faulty method that tests plant on purpose."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bug:
    """A method or property of a class, and its faulty replacement."""

    owner: type
    method: str
    instead: Callable[..., Any] | property
    broken: tuple[str, ...]
    """Invariants of which the bug breaks at least one."""
    seeds: range = range(20)
    """Seeds of which at least one finds the bug."""
