"""Units of a class that are GPUs to Ray: CUDA shows each worker its own, and no others."""

import pytest

from rollart_flow.resources import Cluster, ResourceManager
from rollart_flow.resources.manager import bundle_of
from tests.resources.workers import Shown

pytestmark = pytest.mark.usefixtures("ray_of_nodes")


def shown(resource: str, *, workers: int, units: int = 1) -> list[set[str]]:
    """What each of some workers may use."""
    placed = ResourceManager().place("generation", {"default": resource}, workers, units=units)
    assert {placement.granted for placement in placed} == {resource}
    spawned = Cluster(placed, Shown)
    try:
        return [set(said.split(",")) - {""} for said in spawned.devices()]
    finally:
        spawned.shutdown()


@pytest.mark.parametrize(("workers", "units"), [(2, 1), (2, 2)])
@pytest.mark.parametrize("resource", ["H800", "GPU"])
def test_workers_see_as_many_devices_as_they_have_units_and_share_none(
    resource: str, workers: int, units: int
) -> None:
    first, second = shown(resource, workers=workers, units=units)
    assert len(first) == len(second) == units
    assert not first & second


def test_a_class_without_gpus_asks_ray_for_none() -> None:
    assert bundle_of("H20", 1, 0.1) == {"H20": 1.0, "CPU": 0.1}
    assert bundle_of("H800", 2, 0.1) == {"H800": 2.0, "GPU": 2.0, "CPU": 0.1}
    assert bundle_of("A100", 1, 0.1) == {"A100": 1.0, "CPU": 0.1}, "it may come"
    assert shown("H20", workers=2) == [set(), set()]
