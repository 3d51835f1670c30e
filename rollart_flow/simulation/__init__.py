"""The control plane under virtual time, where a day takes seconds and a seed repeats a run."""

from rollart_flow.simulation.virtual_time import VirtualTimeLoop, run

__all__ = ["VirtualTimeLoop", "run"]
