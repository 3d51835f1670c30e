"""Small scenarios, and one schedule of each name."""

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import (
    areal,
    flash,
    hybrid,
    one_off,
    rollart,
    rollart_plus,
    staged,
    sync,
    sync_plus,
    window,
)
from rollart_flow.simulation.hardware import H20, H800, QWEN3_8B
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.transfers import INTRA_CLUSTER
from rollart_flow.simulation.workloads import GEM_GAME, GEM_MATH, WEB

ONE_POOL = Scenario(
    "one pool",
    QWEN3_8B,
    (GEM_MATH,),
    (Pool(H800, 4),),
    Pool(H800, 4),
    batch_size=32,
    group_size=4,
    transfer=INTRA_CLUSTER,
)
TWO_POOLS = Scenario(
    "two pools",
    QWEN3_8B,
    (GEM_GAME, WEB),
    (Pool(H800, 2), Pool(H20, 4)),
    Pool(H800, 8),
    batch_size=32,
    group_size=4,
    hw_affinity={"web": "H800", "default": "H20"},
)
EVERY: tuple[Schedule, ...] = (
    rollart(1),
    rollart(2),
    flash(1),
    flash(2),
    rollart_plus(1),
    sync(),
    sync_plus(),
    one_off(),
    areal(1),
    window(8),
    staged(8, 16, 8),
    hybrid(),
)
