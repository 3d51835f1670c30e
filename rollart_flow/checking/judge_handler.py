"""The child-process side of a domain's verifier; the parent side is `checking.judging`.

Requests: {"open": description of the domain}, {"judge": [task, diff]}. The answer to the second is
{"reward", "success", "verdicts", "verifier"}, with the verdicts in their JSON form.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from rollart_flow.envs.base import Domain
from rollart_flow.envs.child_handler import resolved_domain
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.sandbox.boxes import LocalBoxes
from rollart_flow.types.verdict_checks import checked_verdicts
from rollart_flow.types.verdicts import Judgement


class JudgeHandler:
    """Judges one diff at a time, in boxes that this process makes."""

    def __init__(self) -> None:
        self._domain: Domain | None = None
        self._boxes = LocalBoxes()

    def __call__(self, request: Mapping[str, Any]) -> object:
        calls: dict[str, Callable[[Any], object]] = {"open": self._open, "judge": self._judge}
        ((name, argument),) = request.items()
        return calls[name](argument)

    def _open(self, how: Mapping[str, Any]) -> None:
        self._domain = resolved_domain(how)

    def _judge(self, argument: tuple[str, str]) -> dict[str, Any]:
        if self._domain is None:
            raise EnvironmentFailedError("no domain is open in this process")
        judgement = self._domain.judge(*argument, self._boxes)
        if not isinstance(judgement, Judgement):
            raise EnvironmentFailedError(
                f"judge returned {type(judgement).__name__}; it must return a Judgement"
            )
        reward = float(judgement.reward)
        if not math.isfinite(reward):
            raise EnvironmentFailedError(f"judge returned the reward {reward}; it must be finite")
        verdicts = checked_verdicts(judgement.verdicts, "verdicts")
        return {
            "reward": reward,
            "success": bool(judgement.success),
            "verdicts": [verdict.as_json() for verdict in verdicts],
            "verifier": str(judgement.verifier),
        }
