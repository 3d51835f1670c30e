"""Replay of a stored training step, trajectory or agent, compared with the recorded values."""

from rollart_flow.replay.captured import CapturedReplay, replay_captured
from rollart_flow.replay.exchanges import SessionReplay
from rollart_flow.replay.kept import KeptLogprobs, keep_logprobs
from rollart_flow.replay.run_exchanges import ExchangesReplay, replay_calls, replay_exchanges
from rollart_flow.replay.step import StepReplay, replay_step
from rollart_flow.replay.trajectory import TrajectoryReplay, replay_trajectory

__all__ = [
    "CapturedReplay", "ExchangesReplay", "KeptLogprobs", "SessionReplay", "StepReplay",
    "TrajectoryReplay", "keep_logprobs", "replay_calls", "replay_captured", "replay_exchanges",
    "replay_step", "replay_trajectory",
]  # fmt: skip
