"""Every schedule drives a real run, and keeps what it promises."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_flow import runner
from rollart_flow.control.schedules import named_schedule
from rollart_flow.pipeline.loading import load_source
from rollart_flow.store import Run, open_run
from rollart_flow.types import Batch
from tests.runner.local import local_ray
from tests.runner.world import source

STEPS = 4


@pytest.fixture(scope="module", autouse=True)
def shared_ray() -> Iterator[None]:
    with local_ray():
        yield


def batches_of(run: Run) -> list[Batch]:
    """What each step trained on, as the control plane had it."""
    rows = run.batches.sort("step", "position").collect()
    return [
        Batch(
            step=step,
            policy_version=of_step["policy_version"][0],
            trained_version=of_step["trained_version"][0],
            trajectory_ids=tuple(of_step["trajectory_id"]),
            group_ids=tuple(of_step["group_id"]),
            staleness=tuple(of_step["staleness"]),
        )
        for (step,), of_step in rows.group_by("step", maintain_order=True)
        if isinstance(step, int)
    ]


@pytest.mark.whole
@pytest.mark.parametrize("name", ["sync", "one_off", "window(2)"])
def test_a_run_keeps_the_promise_of_its_schedule(tmp_path: Path, name: str) -> None:
    overrides = {"schedule": name, "steps": str(STEPS)}
    loaded = load_source(source(tmp_path), tmp_path / "coins.py", overrides)
    run = open_run(runner.run(loaded, store=str(tmp_path), name="coins").uri)
    batches = batches_of(run)
    assert [batch.step for batch in batches] == list(range(1, STEPS + 1))
    assert named_schedule(name).violations(batches) == ()
    trained = run.batches.join(run.trajectories, on="trajectory_id", suffix="_t").collect()
    assert trained.height == STEPS * 8
    if name in ("sync", "sync_plus", "one_off"):
        assert trained["policy_version_start"].equals(trained["policy_version_end"])
