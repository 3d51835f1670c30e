"""Error messages about settings, shared by nodes, overrides and pipeline files."""

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import ValidationError

_LONGEST_VALUE = 60


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Message with a wrong key, the nearest valid key, and all valid keys."""
    names = sorted(known)
    by_ending = {name.rpartition(".")[2]: name for name in names} | {name: name for name in names}
    near = get_close_matches(key, by_ending, n=1)
    hint = f" (did you mean {by_ending[near[0]]}?)" if near else ""
    return f"{key!r}{hint}; settings are {', '.join(names)}"


def explain(error: ValidationError, *, owner: str = "") -> str:
    """One-line message of the first error that pydantic found in a setting of `owner`."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in (owner, *first["loc"]) if part != "")
    given = repr(first["input"])
    if len(given) > _LONGEST_VALUE:
        given = f"{given[: _LONGEST_VALUE - 3]}..."
    if first["type"] == "value_error":  # an error of this library, with a complete message
        return f"{where}: {first['ctx']['error']}"
    said = first["msg"]
    said = said[said.index("should") :] if " should " in said else f"is wrong: {said}"
    return f"{where} {said}, got {given}"
