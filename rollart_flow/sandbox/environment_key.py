"""The key of a box's environment: boxes with one key start equal and can replace each other."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from rollart_flow.sandbox.base import SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.images.digest import hex_digits, is_digest


def environment_key(
    spec: SandboxSpec,
    snapshot: SandboxSnapshot | None = None,
    *,
    variant: str = "bubblewrap",
    script: str = "",
) -> str:
    """Return the digest of everything that decides how a new box looks.

    It covers the variant, every field of the spec (an image of the cache is named by its digest,
    and its build steps are part of that), an install script, and the content of a snapshot. It
    never covers a task, so that all attempts of a group share one prepared state. An image that is
    a folder counts by its path.

    Args:
        spec: contents and limits.
        snapshot: files that the box begins with.
        variant: name in `registry.SANDBOXES`.
        script: commands that were run once to prepare the environment.

    Returns:
        64 hexadecimal digits.
    """
    fields_of_spec = {entry.name: _plain(getattr(spec, entry.name)) for entry in fields(spec)}
    if spec.image is not None and is_digest(spec.image):
        fields_of_spec["image"] = hex_digits(spec.image)
    contents = {
        "variant": variant,
        "script": script,
        "snapshot": snapshot.digest if snapshot is not None else None,
        "spec": fields_of_spec,
    }
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return a field as something that JSON can hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else value
