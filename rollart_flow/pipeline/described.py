"""Nodes and their settings as JSON-serializable values, for run.json and `rollart plan --json`."""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.envs.base import Domain
from rollart_flow.pipeline.graph import Graph
from rollart_flow.pipeline.keywords import keywords
from rollart_flow.pipeline.node import Node
from rollart_flow.secret import check_no_key
from rollart_flow.types import Task


def is_settings(value: object) -> bool:
    """Whether a value is a settings object: it has named fields."""
    return not isinstance(value, type) and (is_model(value) or dataclasses.is_dataclass(value))


def is_model(value: object) -> bool:
    """Whether a value is a pydantic model, as the settings of a user's domain may be."""
    return hasattr(type(value), "model_fields")


def fields_of(value: Any) -> dict[str, Any]:
    """Field values of a settings object, by name, in order of declaration.

    Those of a node include the settings within its nested values.
    """
    if isinstance(value, Node):
        return {name: getattr(value, name) for name in keywords(type(value))}
    if is_model(value):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}


def describe_pipeline(pipeline: Graph) -> dict[str, Any]:
    """Every setting: {name, seed, trackers, alarms, prices, policy, nodes: {name: {kind, ...}}}."""
    return {
        "name": pipeline.name,
        "seed": pipeline.seed,
        "trackers": [str(tracker) for tracker in pipeline.trackers],
        "alarms": describe(pipeline.alarms),
        "prices": dict(pipeline.prices),
        "policy": describe(pipeline.policy),
        "nodes": {node.name: _describe_node(node) for node in pipeline.nodes},
    }


def _describe_node(node: Node) -> dict[str, Any]:
    own = {
        name: value
        for name, value in fields_of(node).items()
        if name not in ("up", "others", "policy", "name")
    }
    settings = _described(node.name, own)
    return {"kind": node.kind, "upstream": [up.name for up in node.upstream], **settings}


def _described(owner: str, items: Mapping[Any, Any]) -> dict[str, Any]:
    for name, value in items.items():
        check_no_key(f"{owner}.{name}", value)
    return {str(name): describe(value) for name, value in items.items()}


def describe(value: Any) -> Any:
    """A setting as JSON-serializable values; a callable becomes the name of its definition.

    Raises:
        SettingsError: a field or key that is named like a secret holds plain text.
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return _described("settings", value)
    if isinstance(value, tuple) and value and all(isinstance(item, Task) for item in value):
        return {"type": "tasks", "count": len(value)}
    if isinstance(value, set | frozenset):
        return sorted((describe(item) for item in value), key=str)
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if is_settings(value):
        name = {"name": value.name} if isinstance(value, Domain) else {}
        own = value.described() if isinstance(value, Schedule) else fields_of(value)
        kind = type(value).__name__
        return {"type": kind, **name, **_described(name.get("name", kind), own)}
    if callable(value):
        if hasattr(value, "__qualname__"):
            return f"{value.__module__}:{value.__qualname__}"
        defined = f"{type(value).__module__}:{type(value).__qualname__}"
        # An instance may say which one it is, as the reward at an address does.
        return f"{defined}({value.__name__})" if hasattr(value, "__name__") else defined
    return str(value)
