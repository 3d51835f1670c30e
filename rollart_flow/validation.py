"""Checks of settings, made when a settings object is built, before a run starts.

An error message is one line with the setting, its value and the permitted values.
"""

import math
from collections.abc import Collection
from types import NoneType, UnionType
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin

from rollart_flow.errors import SettingsError
from rollart_flow.fields import Within, field_types


class CheckedSettings:
    """Base of frozen dataclasses whose annotations say what each setting permits.

    Numbers have a `Within`; choices are literals; other types than those and bool are not checked.
    Values are not converted: a text is no number.

    Raises:
        SettingsError: names the first wrong setting, its value and what is permitted.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in field_types(kind).items():
            check_declared(name, getattr(self, name), hint)


def check_declared(setting: str, value: object, hint: Any) -> None:
    """Refuse a value that the annotation of its setting does not permit, see `CheckedSettings`."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and NoneType in kinds:
        return
    if kinds[0] is bool:
        check_flag(setting, value)
    elif get_origin(kinds[0]) is Literal:
        check_choice(setting, value, get_args(kinds[0]))
    for within in getattr(kinds[0], "__metadata__", ()):
        if isinstance(within, Within) and kinds[0].__origin__ is int:
            check_count(setting, value, low=int(within.low))
        elif isinstance(within, Within):
            low, high, open_low = within.low, within.high, within.open_low
            check_number(setting, value, low=low, high=high, open_low=open_low)


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


def check_file_name(name: object) -> None:
    """Refuse a name, as a manifest of a stored run says it, that is not a file's inside its folder.

    Raises:
        ValueError: it is no text, is empty, or could lead out of the folder.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ValueError(f"{name!r} is not the name of a file in this folder")
