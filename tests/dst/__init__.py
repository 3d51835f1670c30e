"""Deterministic simulation testing: the real control plane among parts that fail, by seed.

The classes of production make every decision; engines, environments, rewards, weights, tables and
messages are simulated and fail as a plan says, which is a function of its seed. An invariant
monitor checks every event, so that a run fails where a promise is broken first.
"""

from tests.dst.cluster import simulate
from tests.dst.fuzzer import Result, fuzz
from tests.dst.plans import Faults, Kill, Plan, Target, plan_of

__all__ = ["Faults", "Kill", "Plan", "Result", "Target", "fuzz", "plan_of", "simulate"]
