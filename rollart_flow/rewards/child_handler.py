"""The child-process side of a plain reward function; the parent side is `rewards.score`.

A request is {"function": reference, "trajectory": base64}; the answer is [reward, parts,
verdicts], whose first two may hold numbers that are not finite. Without a trajectory the handler
only loads the function and answers null.
"""

import base64
import inspect
import pickle
from collections.abc import Mapping
from typing import Any

from rollart_flow.isolation.references import resolve
from rollart_flow.rewards.base import typed_score


class RewardHandler:
    """A handler that scores one trajectory per request; functions are imported once."""

    def __init__(self) -> None:
        self._functions: dict[str, Any] = {}

    def __call__(self, request: Mapping[str, Any]) -> object:
        """Return the score of a trajectory as a list, or None if the request has none."""
        where = request["function"]
        key = repr(where)
        if key not in self._functions:
            self._functions[key] = resolve(where)
        if "trajectory" not in request:
            return None
        trajectory = pickle.loads(base64.b64decode(request["trajectory"]))
        score = self._functions[key](trajectory)
        if inspect.isawaitable(score):
            raise TypeError("a plain function returned an awaitable; write it as async def")
        reward, parts, verdicts = typed_score(score)
        return [reward, parts, [verdict.as_json() for verdict in verdicts]]
