"""Export of a version that is stored in S3."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from rollart_flow import export
from rollart_flow.models.folder import load_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner.setup import create_run
from rollart_flow.store.layout import weights_uri
from rollart_flow.telemetry import ignore_progress
from rollart_flow.weights.registry import stored_weights
from tests.conftest import SMALL_PIPELINE


def test_a_version_in_s3_becomes_a_folder_here(remote: str, tmp_path: Path) -> None:
    loaded = load_source(SMALL_PIPELINE, tmp_path / "small.py")
    uri = create_run(loaded, store=remote, name="small", on_progress=ignore_progress)
    assert export(uri, tmp_path / "stored").source == "weights"
    stored_weights(weights_uri(uri)).remove([0])
    assert export(uri, tmp_path / "start", version=0).source == "policy"
    materialize(Policy.tiny(hidden=32), tmp_path / "wanted")
    for name in ("stored", "start"):
        found = load_file(tmp_path / name / "model.safetensors")
        wanted = load_folder(tmp_path / "wanted")[1]
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())
