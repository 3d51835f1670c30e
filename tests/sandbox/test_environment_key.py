"""Keys of environments: equal for boxes that start equal, different for all others."""

import dataclasses
import pickle
from typing import Any

import pytest

from rollart_flow.sandbox.base import SandboxLimits, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.environment_key import environment_key

CHANGES: dict[str, Any] = {
    "image": "name@sha256:" + "0" * 64,
    "writable": True,
    "workdir": "/elsewhere",
    "env": {"A": "1"},
    "mounts": {"/data": "/srv/data"},
    "socket": "/run/gateway.sock",
    "limits": SandboxLimits(memory_mb=64),
}


def test_equal_specs_have_one_key_whatever_the_order_of_their_entries() -> None:
    one = SandboxSpec(env={"A": "1", "B": "2"}, mounts={"/x": "/usr", "/y": "/etc"})
    other = SandboxSpec(env={"B": "2", "A": "1"}, mounts={"/y": "/etc", "/x": "/usr"})
    assert environment_key(one) == environment_key(other)


@pytest.mark.parametrize("name", [entry.name for entry in dataclasses.fields(SandboxSpec)])
def test_every_field_of_a_spec_counts(name: str) -> None:
    changed = dataclasses.replace(SandboxSpec(), **{name: CHANGES[name]})
    assert environment_key(changed) != environment_key(SandboxSpec())


def test_the_variant_the_script_and_the_snapshot_count() -> None:
    spec = SandboxSpec()
    keys = [
        environment_key(spec),
        environment_key(spec, variant="docker"),
        environment_key(spec, script="make"),
        environment_key(spec, SandboxSnapshot(spec, b"one")),
        environment_key(spec, SandboxSnapshot(spec, b"two")),
    ]
    assert len(set(keys)) == len(keys)
    again = pickle.loads(pickle.dumps(SandboxSnapshot(spec, b"one")))
    assert environment_key(spec, again) == keys[3]


def test_the_name_of_an_image_does_not_count_beside_its_digest() -> None:
    digest = "sha256:" + "0" * 64
    named = environment_key(SandboxSpec(image=f"name@{digest}"))
    assert named == environment_key(SandboxSpec(image=digest))
