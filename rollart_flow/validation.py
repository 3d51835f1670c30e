"""Checks of settings, made when a settings object is built, before a run starts.

An error message is one line with the setting, its value and the permitted values.
"""

import math
from collections.abc import Collection
from typing import TypeGuard

from rollart_flow.errors import SettingsError


def check_number(
    setting: str, value: object, *, low: float, high: float = math.inf, open_low: bool = False
) -> None:
    """Refuse a value that is not a finite number in [low, high], or in (low, high] with `open_low`.

    Raises:
        SettingsError: names the setting, the value and the range.
    """
    if _is_number(value) and low <= value <= high and not (open_low and value == low):
        return
    upper = "" if high == math.inf else f" and at most {high:g}"
    lower = f"above {low:g}" if open_low else f"at least {low:g}"
    raise SettingsError(f"{setting}={value!r}: expected a number {lower}{upper}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_count(setting: str, value: object, *, low: int) -> None:
    """Refuse a value that is not a whole number of at least `low`.

    Raises:
        SettingsError: names the setting, the value and the minimum.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise SettingsError(f"{setting}={value!r}: expected a whole number of at least {low}")


def check_choice(setting: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value that is not one of the choices.

    Raises:
        SettingsError: names the setting, the value and the choices.
    """
    if value not in choices:
        raise SettingsError(f"{setting}={value!r}: expected one of {', '.join(sorted(choices))}")


def check_flag(setting: str, value: object) -> None:
    """Refuse a value that is neither True nor False.

    Raises:
        SettingsError: names the setting and the value.
    """
    if not isinstance(value, bool):
        raise SettingsError(f"{setting}={value!r}: expected True or False")


def check_kind(setting: str, value: object, kind: type, *, optional: bool = False) -> None:
    """Refuse a value that is not an instance of a class; with `optional`, None is accepted too.

    Raises:
        SettingsError: names the setting, the value and the class.
    """
    if not (isinstance(value, kind) or (optional and value is None)):
        name = getattr(value, "__name__", None)
        hint = f"; call it: {name}()" if callable(value) and name else ""
        kinds = f"None or a {kind.__name__}" if optional else f"a {kind.__name__}"
        raise SettingsError(f"{setting}={value!r}: expected {kinds}{hint}")
