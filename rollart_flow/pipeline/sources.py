"""Sources of tasks other than domains: lists of tasks, and Ray datasets."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rollart_flow.envs.base import Domain
from rollart_flow.errors import SettingsError
from rollart_flow.types import Task


def read_source(source: Any) -> Any:
    """Convert a source to the form that a node holds: domain, dataset, or tuple of tasks."""
    if isinstance(source, Domain) or _is_dataset(source):
        return source
    if isinstance(source, str | bytes | Mapping) or not isinstance(source, Iterable):
        raise SettingsError(
            f"a source is a domain, a ray.data.Dataset or an iterable of tasks, got {source!r}"
        )
    read = tuple(read_task(row) for row in source)
    if not read:
        raise SettingsError("a list of tasks is empty")
    return read


def _is_dataset(source: Any) -> bool:
    """Whether the source is a Ray dataset, without loading Ray: if it is one, Ray is loaded."""
    data = sys.modules.get("ray.data")
    return data is not None and isinstance(source, data.Dataset)


def read_task(row: Any) -> Task:
    """Convert a `Task` or a mapping to a `Task`; a payload that is not a string becomes JSON."""
    if isinstance(row, Task):
        return row
    keys = ("task_id", "domain", "payload")
    if not isinstance(row, Mapping) or {"task_id", "domain"} - row.keys() or row.keys() - {*keys}:
        raise SettingsError(f"a task is a Task or a mapping of {', '.join(keys)}, got {row!r}")
    payload = row.get("payload", "{}")
    text = payload if isinstance(payload, str) else json.dumps(payload, sort_keys=True)
    return Task(str(row["task_id"]), str(row["domain"]), text)
