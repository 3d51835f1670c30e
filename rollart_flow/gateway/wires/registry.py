"""The wires by name, and the routes: which wire and operation a method and a path stand for.

Paths are accepted with and without `/v1`, `/v1beta` or `/v1alpha` before them, however often a
client's base has repeated it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from urllib.parse import parse_qs, unquote

from rollart_flow.gateway.core.calls import CallRefusedError, Refusal
from rollart_flow.gateway.wires.base import ProviderWire, WireReply, refusal_headers
from rollart_flow.gateway.wires.events import json_bytes
from rollart_flow.registry import Registry
from rollart_flow.text import one_line

WIRES: Registry[ProviderWire] = Registry(
    "wires",
    {
        name: f"rollart_flow.gateway.wires.{name}:WIRE"
        for name in ("chat", "responses", "messages", "google")
    },
    setting="wire",
    kind=ProviderWire,
)


class Operation(StrEnum):
    """Operation of a route."""

    ANSWER = "answer"
    """Answer a call; as a stream if `ModelCall.stream` says so."""
    COUNT = "count"
    """Count the tokens of a call's prompt."""
    MODELS = "models"
    """List the models."""
    MODEL = "model"
    """Describe the model `Route.model`."""
    ALIVE = "alive"
    """Say that the gateway is there, with an empty answer of status 200."""


@dataclass(frozen=True, slots=True)
class Route:
    """Wire and operation that a request is for."""

    wire: ProviderWire
    operation: Operation
    model: str = ""
    """Model in the path, for `Operation.MODEL`."""


_BASE = re.compile(r"^(?:/v1(?:beta|alpha)?(?=/|$))*")
_MODEL = re.compile(r"/models/([^:]+)")
_KEY_HEADERS = ("x-api-key", "x-goog-api-key")


def find_route(method: str, target: str, headers: Mapping[str, str]) -> Route | WireReply:
    """Return what a request is for, or the reply to one that is for nothing.

    Args:
        method: method of the request.
        target: its path and query.
        headers: its headers, which tell the wires apart where paths coincide.
    """
    path = _BASE.sub("", target.partition("?")[0]).rstrip("/")
    posted = next((route for pattern, route in _posted() if pattern.fullmatch(path)), None)
    wire = posted.wire if posted else WIRES.load(_spoken(target, headers))
    route = posted or _read_route(path, wire)
    if route is None:
        return _refused(wire, 404, f"there is nothing at {path or '/'}", {})
    allowed = ("POST",) if posted else ("GET", "HEAD")
    if method in allowed:
        return route
    takes = ", ".join(allowed)
    return _refused(wire, 405, f"{path or '/'} takes {takes}, not {method}", {"allow": takes})


def presented_key(target: str, headers: Mapping[str, str]) -> str | None:
    """Return the key that a request presents, wherever its wire has it; None without one.

    Args:
        target: path and query of the request.
        headers: its headers.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    scheme, _, bearer = lower.get("authorization", "").partition(" ")
    places = [bearer.strip() if scheme.lower() == "bearer" else ""]
    places += [lower.get(name, "").strip() for name in _KEY_HEADERS]
    places += parse_qs(target.partition("?")[2]).get("key", ())
    return next((key for key in places if key), None)


@cache
def _posted() -> tuple[tuple[re.Pattern[str], Route], ...]:
    """Return the routes of all wires that take POST, with the patterns of their paths."""
    wires = [wire for _, wire in WIRES.variants()]
    routes = [(wire.answer_path, Route(wire, Operation.ANSWER)) for wire in wires]
    routes += [(wire.count_path, Route(wire, Operation.COUNT)) for wire in wires if wire.count_path]
    return tuple((re.compile(path), route) for path, route in routes)


def _read_route(path: str, wire: ProviderWire) -> Route | None:
    """Return the route of a path that is read."""
    if path == "":
        return Route(wire, Operation.ALIVE)
    if path == "/models":
        return Route(wire, Operation.MODELS)
    found = _MODEL.fullmatch(path)
    return Route(wire, Operation.MODEL, unquote(found[1])) if found else None


def _spoken(target: str, headers: Mapping[str, str]) -> str:
    """Return the name of the wire that a client speaks, by what all of its requests have."""
    lower = {name.lower() for name in headers}
    if "anthropic-version" in lower:
        return "messages"
    if "x-goog-api-key" in lower or re.match(r"/v1(?:beta|alpha)(?:/|$)", target):
        return "google"
    return "chat"


def _refused(
    wire: ProviderWire, status: int, message: str, headers: Mapping[str, str]
) -> WireReply:
    error = CallRefusedError(Refusal.UNSUPPORTED, one_line(message))
    both = {**refusal_headers(error.refusal), **headers}
    return WireReply(status, both, json_bytes(wire.error(error, status)))
