"""The descriptions of a trainer and of a reward transport, which load neither."""

from rollart_flow.registry import Requirement
from rollart_flow.serverless.transports.base import TransportVariant
from rollart_flow.trainers.registry import TrainerCapabilities, TrainerVariant

TRAINER = TrainerVariant(
    "rollart_tiny.trainer:TinyTrainer",
    TrainerCapabilities(follows_policy_device=True),
    (Requirement("tiny", ("rollart-tiny",), "tiny", summary=lambda gpu: "trains very little"),),
)
REWARDS = TransportVariant("rollart_tiny.rewards:open_transport", "tiny://")
