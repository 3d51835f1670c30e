"""Settings of a request that several wires have: sampling, limits, tools, what is refused."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rollart_flow.gateway.wires.reading import Fields
from rollart_flow.types import Tool

CHANGES_DISTRIBUTION = "would change the distribution of the policy; leave it out"
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def sampling_of(
    fields: Fields, numbers: Iterable[str], texts: Iterable[str] = (), stop: str = "stop"
) -> dict[str, Any]:
    """Return the settings of sampling of a request by name, without those that are absent.

    Args:
        fields: the request, or the part of it that has them.
        numbers: names of the settings that are numbers.
        texts: names of those that are texts.
        stop: name of the stop texts, one or a list.
    """
    found: dict[str, Any] = {name: fields.number(name) for name in numbers}
    found |= {name: fields.text(name) for name in texts}
    if isinstance(fields.raw(stop), str):
        found[stop] = [fields.need(stop)]
    elif stop in fields:
        items = fields.items(stop)
        found[stop] = [each for each in items if isinstance(each, str)]
        if len(found[stop]) < len(items):
            fields.wrong(stop, "a list of texts")
    return {name: value for name, value in found.items() if value is not None}


def refuse_given(fields: Fields, names: Iterable[str]) -> None:
    """Refuse a request with one of these fields, unless it is empty."""
    for name in names:
        if fields.raw(name) not in (None, "", False, [], {}):
            fields.unsupported(name, CHANGES_DISTRIBUTION)


def refuse_several(fields: Fields, name: str) -> None:
    """Refuse a request for several answers."""
    if fields.count(name) not in (None, 1):
        fields.unsupported(name, "should be 1: a call has one answer")


def refuse_format(fields: Fields, name: str, place: str) -> None:
    """Refuse a format other than text.

    Args:
        fields: the object that has the format.
        name: the format, an object with a type.
        place: name of the field, for the error.
    """
    wanted = fields.child(name)
    if wanted is None:
        return
    with wanted:
        if wanted.need("type") != "text":
            fields.unsupported(place, f"should have the type text: another {CHANGES_DISTRIBUTION}")


def check_hosted(fields: Fields, hosted: Iterable[str], tools: Collection[object]) -> None:
    """Refuse a request whose only tools are those that the provider runs.

    Beside functions they are left out, since clients offer them by themselves.
    """
    offered = ", ".join(hosted)
    if offered and not tools:
        fields.unsupported("tools", f"has only {offered}, which its provider runs; it is not here")


def function_of(fields: Fields, name: str, parameters: Mapping[str, Any] | None) -> Tool:
    """Return the function that a request describes.

    Args:
        fields: the description.
        name: name of the function.
        parameters: JSON Schema of its arguments; None if it has none.
    """
    if not name:
        fields.wrong("name", "a name")
    return Tool(name, fields.text("description") or "", parameters or _NO_PARAMETERS)
