"""The side of a plain reward function that runs in its process; the other is `rewards.score`.

The one request is {"function": reference, "trajectory": base64}; the answer is [reward, parts],
not finite ones included. Without a trajectory the function is loaded, and nothing is answered.
"""

import base64
import inspect
import pickle
from collections.abc import Mapping
from typing import Any

from rollart_flow.isolation.references import resolve
from rollart_flow.rewards.checked import typed_score


class RewardHandler:
    """Scores one trajectory a request; functions are imported once."""

    def __init__(self) -> None:
        """Hold no function yet."""
        self._functions: dict[str, Any] = {}

    def __call__(self, request: Mapping[str, Any]) -> object:
        """(reward, parts or None) of one trajectory, if there is one."""
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
        return typed_score(score)
