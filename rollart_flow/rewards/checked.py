"""What a reward function may return.

Invariant: what passes `typed_score` is (float, parts or None) and nothing else; whether it is
finite is asked apart, since that has a reason of its own.
"""

import math
from collections.abc import Mapping

from rollart_flow.errors import RewardFailedError

_EXPECTED = "a finite number or (finite number, mapping of names to finite numbers)"

Checked = tuple[float, dict[str, float] | None]
"""(reward, named parts or None)."""


def typed_score(score: object) -> Checked:
    """A score in plain Python types; its numbers may still be anything.

    Raises:
        TypeError: it is no score; the message says what it is.
    """
    reward, parts = score if isinstance(score, tuple | list) and len(score) == 2 else (score, None)
    if parts is None:
        return _number(reward, "reward"), None
    if not isinstance(parts, Mapping):
        raise TypeError(f"returned {_name(parts)} as parts; it must return {_EXPECTED}")
    named = {str(name): _number(value, f"part {name!r}") for name, value in parts.items()}
    return _number(reward, "reward"), named


def infinite_number(score: Checked) -> str | None:
    """What of a score is NaN or infinite, in words; None where nothing is."""
    reward, parts = score
    for name, value in {"reward": reward, **(parts or {})}.items():
        if not math.isfinite(value):
            return f"returned {value} as {name}; it must return {_EXPECTED}"
    return None


def finite(value: float, what: str) -> float:
    """A value that is reckoned with: a cap or a threshold would make a number of NaN.

    Raises:
        RewardFailedError: it is NaN or infinite; says of what.
    """
    if not math.isfinite(value):
        raise RewardFailedError(f"{what}: returned {value}; it must be a finite number")
    return value


def _number(value: object, what: str) -> float:
    item = getattr(value, "item", None)
    number = item() if callable(item) and getattr(value, "shape", None) == () else value
    if isinstance(number, int | float):
        return float(number)
    raise TypeError(f"returned {_name(value)} as {what}; it must return {_EXPECTED}")


def _name(value: object) -> str:
    return "None" if value is None else type(value).__name__
