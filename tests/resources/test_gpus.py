"""Workers of a policy on cuda share the GPUs that Ray counts, or the run is refused."""

import pytest

from rollart_flow.errors import RunFailedError
from rollart_flow.resources import CPU, Cluster, Placement, Request, ResourceManager
from rollart_flow.resources.gpus import gpu_share, on_gpus
from rollart_flow.resources.manager import free_gangs
from tests.resources.workers import Shown

pytestmark = pytest.mark.usefixtures("ray_of_gpus")


def test_workers_get_equal_shares_of_one_gpu_each() -> None:
    assert [gpu_share(count) for count in (1, 2, 3, 4, 6)] == [1.0, 1.0, 0.5, 0.5, 0.3333]
    wanted = {"frozenlake": "H800", "default": CPU}
    placed = ResourceManager(grace_s=0.1).place("generation", wanted, 3, prefix="engine")
    moved = on_gpus(placed, gpu_share(3))
    assert [p.worker for p in moved] == [f"engine-gpu-{index}" for index in range(3)]
    assert moved[0].requests == (Request("frozenlake", "H800"), Request("default", "GPU"))
    spawned = Cluster(moved, Shown)
    try:
        shown = spawned.devices()
        assert sorted(shown) in (["0", "0", "1"], ["0", "1", "1"])
        assert {row["granted"] for row in spawned.bindings()} == {"GPU"}
        with pytest.raises(RunFailedError, match="no room for 4 workers on 1 GPU each"):
            on_gpus([Placement(f"w-cpu-{i}", "generation", CPU) for i in range(4)], 1.0)
    finally:
        spawned.shutdown()


def test_what_was_granted_a_class_stays_where_it_is() -> None:
    classed = Placement("engine-h800-0", "generation", "H800", gpus=1.0)
    assert on_gpus([classed], 1.0) == [classed]
    mixed = on_gpus([classed, Placement("trainer-cpu-0", "training", CPU)], 0.5)
    assert mixed[0] == classed
    assert (mixed[1].worker, mixed[1].devices) == ("trainer-gpu-0", 0.5)
    free_gangs(mixed[1:])
