"""Named scenarios, with which schedules can be compared without writing a file."""

from collections.abc import Callable, Mapping

from rollart_flow.simulation.hardware import H20, H800, INTRA_CLUSTER, QWEN3_8B, QWEN3_14B
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.workloads import FROZEN_LAKE, GEM_GAME, GEM_MATH, SWE, WEB


def small() -> Scenario:
    """Qwen3-8B on two domains, 4 H20 to roll out and 4 H800 to train."""
    return Scenario(
        name="small",
        model=QWEN3_8B,
        domains=(GEM_MATH, FROZEN_LAKE),
        rollout=(Pool(H20, 4),),
        training=Pool(H800, 4),
        batch_size=64,
        group_size=8,
    )


def swe() -> Scenario:
    """Qwen3-8B on SWE, 32 H800 that roll out and train in turns (ROLLART Figure 3)."""
    return Scenario(
        name="swe",
        model=QWEN3_8B,
        domains=(SWE,),
        rollout=(),
        training=Pool(H800, 32),
        batch_size=128,
        group_size=8,
        shared=True,
        transfer=INTRA_CLUSTER,
    )


def mix() -> Scenario:
    """Qwen3-14B on four domains, each on the devices that suit it (ROLLART section 7.1)."""
    return Scenario(
        name="mix",
        model=QWEN3_14B,
        domains=(WEB, FROZEN_LAKE, GEM_MATH, GEM_GAME),
        rollout=(Pool(H800, 64), Pool(H20, 32)),
        training=Pool(H800, 32),
        batch_size=512,
        group_size=8,
        tensor_parallel=2,
        hw_affinity={"frozenlake": "H800", "web": "H800", "default": "H20"},
    )


SCENARIOS: Mapping[str, Callable[[], Scenario]] = {"small": small, "swe": swe, "mix": mix}
"""Scenarios by name."""
