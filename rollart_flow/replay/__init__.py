"""Replay of a stored training step or trajectory, compared with the recorded values."""

from rollart_flow.replay.step import StepReplay, replay_step
from rollart_flow.replay.trajectory import TrajectoryReplay, replay_trajectory

__all__ = ["StepReplay", "TrajectoryReplay", "replay_step", "replay_trajectory"]
