"""Four H20 for long answers, two H800 for many short turns, two to train; `rollart simulate` it."""

from rollart_flow.simulation.hardware import H20, H800, QWEN3_8B
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.workloads import FROZEN_LAKE, GEM_MATH

scenario = Scenario(
    name="eight",
    model=QWEN3_8B,
    domains=(GEM_MATH, FROZEN_LAKE),
    rollout=(Pool(H20, 4), Pool(H800, 2)),
    training=Pool(H800, 2),
    batch_size=32,
    group_size=8,
    hw_affinity={"frozenlake": "H800", "default": "H20"},
)
