"""The reward model of a scenario: on instances on demand, or on devices of its own."""

from dataclasses import dataclass

from rollart_flow.simulation.hardware import Roofline


@dataclass(frozen=True, slots=True)
class Serverless:
    """Instances of the reward model on demand (ROLLART sections 5.2 and 7.3)."""

    judge: Roofline
    """The reward model on one instance."""
    cold_start_s: float = 5.0
    """Time until a new instance answers; assumed, with the model in a snapshot (ServerlessLLM)."""
    keep_alive_s: float = 60.0
    """Time after which an idle instance ends [s]."""
    call_s: float = 0.01
    """Transfer of one call: 0.01 s on average, at most 2.1 s (ROLLART section 7.5)."""
    verdict_tokens: int = 16
    """Tokens of the judge's answer, which is a score. With so few, four devices are as idle as
    ROLLART Figure 6 shows them (7.4%)."""
    concurrency: int = 8
    """Calls that one instance serves side by side; assumed."""


@dataclass(frozen=True, slots=True)
class Dedicated:
    """Devices that only the reward model uses (ROLLART section 3.1, Figure 6)."""

    judge: Roofline
    workers: int
    verdict_tokens: int = 16
