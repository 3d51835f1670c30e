"""Types of settings fields, which say what values are permitted, and the check of them.

A settings class is a frozen dataclass that declares a setting once, and calls `check_fields` in its
`__post_init__`:

    temperature: Annotated[float, Within(0)] = 1.0
    '''0 is greedy.'''

A relation between several fields is checked with the functions of `validation`. The invariant: an
object is taken as it is; numbers get the type of their field, and lists become tuples. An error
message is one line with the setting, what is permitted, and the given value.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from rollart_flow.errors import SettingsError

_LONGEST_VALUE = 60


@runtime_checkable
class Constraint(Protocol):
    """Metadata of `Annotated` that permits some values of a type."""

    def fault(self, value: Any) -> str | None:
        """The fault of a value, e.g. "should be above 0", or None if the value is permitted."""


@dataclasses.dataclass(frozen=True)
class Within:
    """A number in [low, high], or in (low, high] with `open_low`."""

    low: float
    high: float = math.inf
    open_low: bool = False
    finite: bool = True
    """Whether infinity is refused."""

    def fault(self, value: float) -> str | None:
        """The fault of a number, or None."""
        above = value > self.low or (value == self.low and not self.open_low)
        if above and value <= self.high and not (self.finite and value == math.inf):
            return None
        if math.isnan(value) or math.isinf(value):
            return "should be a finite number"
        if above:
            return f"should be less than or equal to {self.high:g}"
        return f"should be greater than {'' if self.open_low else 'or equal to '}{self.low:g}"


@dataclasses.dataclass(frozen=True)
class Matching:
    """A text that matches a pattern."""

    pattern: str
    wanted: str
    """Description of the accepted texts, for error messages."""

    def fault(self, value: str) -> str | None:
        """The fault of a text, or None."""
        return None if re.fullmatch(self.pattern, value) else f"should be {self.wanted}"


Count: TypeAlias = Annotated[int, Within(1)]
NotNegative: TypeAlias = Annotated[int, Within(0)]
Positive: TypeAlias = Annotated[float, Within(0, open_low=True)]
Name: TypeAlias = Annotated[
    str,
    Matching(r"[A-Za-z][A-Za-z0-9_-]*", "a letter, then letters, digits, '_' and '-'"),
]


class _MisfitError(Exception):
    """A value does not fit its type: what is wrong, at which path in it, and the wrong part."""

    def __init__(self, fault: str, value: object, *path: str) -> None:
        super().__init__(fault, value, *path)
        self.fault, self.value, self.path = fault, value, path

    def within(self, key: object) -> "_MisfitError":
        """Return the same fault, seen from the value that holds the wrong one under a key."""
        return _MisfitError(self.fault, self.value, str(key), *self.path)

    def of(self, setting: str) -> SettingsError:
        """The error that names the setting which holds the value."""
        where = ".".join((setting, *self.path))
        return SettingsError(f"{where} {self.fault}, got {shortened(self.value)}")


_Reader: TypeAlias = Callable[[Any], Any]
"""Function that returns a value in the form in which a setting holds it, or raises."""


def check_fields(settings: Any) -> None:
    """Refuse a settings object with a field whose value its annotation does not permit.

    Numbers are converted to the type of their field, and lists to tuples.

    Raises:
        SettingsError: names the first such field, its value, and what is permitted.
    """
    kind: type = type(settings)
    for name, read in _field_readers(kind):
        given = getattr(settings, name)
        try:
            held = read(given)
        except _MisfitError as error:
            raise error.of(name) from None
        if held is not given:
            object.__setattr__(settings, name, held)


def fitted(setting: str, hint: Any, value: Any) -> Any:
    """Return a value in the form in which a setting of a type holds it.

    Raises:
        SettingsError: names the setting, the value, and what is permitted.
    """
    try:
        return _reader(hint)(value)
    except _MisfitError as error:
        raise error.of(setting) from None


def shortened(value: object) -> str:
    """Text of a value for an error message."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Type of each field of a settings class, with its constraints."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def _field_readers(kind: type) -> tuple[tuple[str, _Reader], ...]:
    return tuple((name, _reader(hint)) for name, hint in field_types(kind).items())


@cache
def _reader(hint: Any) -> _Reader:
    """The reader of values of a type."""
    if hint is Any:
        return lambda value: value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _constrained(arguments[0], [c for c in arguments[1:] if isinstance(c, Constraint)])
    if origin in (Union, UnionType):
        return _either([_reader(each) for each in arguments if each is not NoneType], arguments)
    if origin is Literal:
        return _one_of(arguments)
    if origin is tuple:
        return _tuple_of(arguments)
    if origin is dict:
        return _mapping_of(*map(_reader, arguments))
    if hint in (int, float):
        return lambda value: _number(hint, value)
    return _instance_of(origin or hint)


def _constrained(base: Any, constraints: Iterable[Constraint]) -> _Reader:
    read = _reader(base)

    def reader(value: Any) -> Any:
        held = read(value)
        for constraint in constraints:
            if fault := constraint.fault(held):
                raise _MisfitError(fault, value)
        return held

    return reader


def _either(readers: list[_Reader], kinds: Collection[Any]) -> _Reader:
    def reader(value: Any) -> Any:
        if value is None and NoneType in kinds:
            return value
        faults = []
        for read in readers:
            try:
                return read(value)
            except _MisfitError as error:
                faults.append(error)
        if len(faults) == 1 or any(error.path for error in faults):
            raise faults[0]
        first, *others = (error.fault for error in faults)
        said = [first, *(other.removeprefix("should be ") for other in others)]
        raise _MisfitError(" or ".join(said), value)

    return reader


def _one_of(choices: tuple[Any, ...]) -> _Reader:
    *most, last = map(repr, choices)
    wanted = f"{', '.join(most)} or {last}" if most else last

    def reader(value: Any) -> Any:
        if value not in choices:
            raise _MisfitError(f"should be {wanted}", value)
        return value

    return reader


def _tuple_of(items: tuple[Any, ...]) -> _Reader:
    endless = items[-1] is Ellipsis
    readers = [_reader(item) for item in items if item is not Ellipsis]

    def reader(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list):
            raise _MisfitError("should be a valid tuple", value)
        if not endless and len(value) != len(readers):
            raise _MisfitError(f"should have {len(readers)} items", value)
        held = []
        for index, item in enumerate(value):
            try:
                held.append(readers[0 if endless else index](item))
            except _MisfitError as error:
                raise error.within(index) from None
        same = isinstance(value, tuple) and all(a is b for a, b in zip(held, value, strict=True))
        return value if isinstance(value, tuple) and same else tuple(held)

    return reader


def _mapping_of(read_key: _Reader, read_value: _Reader) -> _Reader:
    def reader(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _MisfitError("should be a valid dictionary", value)
        held = {}
        for key, item in value.items():
            try:
                held[read_key(key)] = read_value(item)
            except _MisfitError as error:
                raise error.within(key) from None
        return held

    return reader


def _number(kind: type[int] | type[float], value: Any) -> float:
    """A number of a kind, also from a text or from a number of the other kind if it is whole."""
    if type(value) is kind:
        return value
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    lost = number != value and not isinstance(value, str)
    if number is None or lost or isinstance(value, bool):
        wanted = "integer" if kind is int else "number"
        raise _MisfitError(f"should be a valid {wanted}", value)
    return number


_WANTED = {str: "a valid string", bool: "a valid boolean", Callable: "callable"}


def _instance_of(kind: type[Any]) -> _Reader:
    wanted = _WANTED.get(kind, f"an instance of {kind.__name__}")

    def reader(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _MisfitError(f"should be {wanted}", value)
        return value

    return reader
