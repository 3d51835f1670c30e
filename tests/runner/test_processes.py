"""The processes of a run: whatever was started ends where one of them cannot start."""

from pathlib import Path

import pytest
import ray

from rollart_flow.errors import RunFailedError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner.executors.ray import RayExecutor
from rollart_flow.runner.processes import start_processes
from rollart_flow.runner.setup import create_run
from rollart_flow.store.layout import policy_uri
from rollart_flow.telemetry import ignore_progress
from tests.runner.world import source

PLACED = """
trajectories = rollout(tasks(Coin()), policy, hw_affinity={"default": "H20"}, max_tokens=6)
pipeline = Pipeline("coins", train(buffer(reward(trajectories)), policy, gated, steps=1))
"""


def test_nothing_stays_reserved_where_a_worker_cannot_start(
    tmp_path: Path, ray_of_classes: None
) -> None:
    loaded = load_source(source(tmp_path, PLACED), tmp_path / "coins.py")
    uri = create_run(loaded, store=str(tmp_path), name="coins", on_progress=ignore_progress)
    (Path(policy_uri(uri)) / "model.safetensors").write_bytes(b"damaged")
    before = ray.util.placement_group_table().keys()
    failing = pytest.raises(RunFailedError, match="worker engine-h20-0 cannot start: ")
    with failing, RayExecutor() as executor:
        start_processes(executor, loaded.pipeline, uri)
    groups = ray.util.placement_group_table()
    added = groups.keys() - before
    assert [groups[name]["state"] for name in added] == ["REMOVED", "REMOVED"]
