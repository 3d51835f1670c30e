"""Frozen values that cross processes, and their enums.

This package does no computation and imports neither Ray nor torch. All values are immutable,
compare by value, so that a message that arrives twice is recognized, and can be pickled.
"""

from rollart_flow.types.branching import Retry, Return, SubAgent
from rollart_flow.types.events import (
    TRAINABLE,
    WITHHELD,
    Event,
    EventKind,
    FinishReason,
    Outcome,
    Reason,
    Retried,
    Split,
)
from rollart_flow.types.generation import Chunk, Generation, GenerationRequest, Prefix, Sampling
from rollart_flow.types.images import Image
from rollart_flow.types.limits import AttemptLimits, Limits
from rollart_flow.types.messages import Action, Message, Observation, Role, Tool, ToolCall
from rollart_flow.types.trajectories import (
    Assignment,
    Batch,
    Sample,
    Task,
    Trajectory,
    Turn,
    solved_by,
)

__all__ = [
    "TRAINABLE", "WITHHELD", "Action", "Assignment", "AttemptLimits", "Batch", "Chunk", "Event",
    "EventKind", "FinishReason", "Generation", "GenerationRequest", "Image", "Limits",
    "Message", "Observation", "Outcome", "Prefix", "Reason", "Retried", "Retry", "Return",
    "Role", "Sample", "Sampling", "Split", "SubAgent", "Task", "Tool", "ToolCall", "Trajectory",
    "Turn", "solved_by",
]  # fmt: skip
