"""Words of errors about settings, the same for nodes, overrides and pipeline files."""

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import ValidationError

_LONGEST_VALUE = 60


def unknown_key(key: str, known: Iterable[str]) -> str:
    """A wrong key, the nearest right one, and all of them."""
    names = sorted(known)
    by_ending = {name.rpartition(".")[2]: name for name in names} | {name: name for name in names}
    near = get_close_matches(key, by_ending, n=1)
    hint = f" (did you mean {by_ending[near[0]]}?)" if near else ""
    return f"{key!r}{hint}; settings are {', '.join(names)}"


def explain(error: ValidationError, *, owner: str = "") -> str:
    """The first thing that pydantic found wrong with a setting of `owner`, in one line."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in (owner, *first["loc"]) if part != "")
    given = repr(first["input"])
    if len(given) > _LONGEST_VALUE:
        given = f"{given[: _LONGEST_VALUE - 3]}..."
    if first["type"] == "value_error":  # one of ours, which says it all
        return f"{where}: {first['ctx']['error']}"
    said = first["msg"]
    said = said[said.index("should") :] if " should " in said else f"is wrong: {said}"
    return f"{where} {said}, got {given}"
