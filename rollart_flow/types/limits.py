"""Limits of attempts."""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from rollart_flow.fields import Count, Within, check_fields

_Duration: TypeAlias = Annotated[float, Within(0, open_low=True, finite=False)]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits at which an attempt is cut off. `math.inf` stands for no time limit.

    Raises:
        SettingsError: names the limit that is not positive.
    """

    max_turns: Count | None = None
    """Turns after which an attempt is truncated; None: the limit of its domain, if that has one."""
    step_timeout_s: _Duration = 10.0
    """Time limit of a reset, of each step and of the close of an environment [s]."""
    trajectory_timeout_s: _Duration = 300.0
    """Time limit of an attempt, from the permission to start to its end [s]. Waiting for a place
    to run in does not count."""
    context: str | None = None
    """Policy for a chain of tokens that gets too long: "cut", "summarize", "notes", one of them
    with settings, such as "cut(keep=0.25)", or "end", which ends the attempt; None: that of its
    domain."""
    max_branches: Count = 64
    """Rows of `trajectories` that one attempt may have, after which it is truncated."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class AttemptLimits(Limits):
    """The limits of one attempt, with those that its domain and policy give."""

    context_tokens: Count
    """Most tokens of the chain."""
