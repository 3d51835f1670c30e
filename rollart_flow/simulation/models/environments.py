"""Environments that follow a script, and the codec of run lengths.

The invariant: an observation consists of its length alone, which becomes one token id.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from rollart_flow.simulation.workloads import Script, shared


class RunLengthCodec:
    """A codec whose observations are numbers of tokens; one id stands for all tokens of one."""

    def encode_observation(self, text: str, *, first: bool, ended: bool = True) -> tuple[int, ...]:
        """The number of tokens as one id."""
        return (shared(int(text)),)

    def decode(self, token_ids: Sequence[int]) -> str:
        """An empty action: the environment follows its script."""
        return ""


class ScriptedEnvironment:
    """The environment of one attempt.

    Args:
        outage_s: the time until environments start again, by the time of the loop [s].
    """

    __slots__ = ("_outage_s", "_script", "_turn")

    def __init__(self, script: Script, outage_s: Callable[[float], float]) -> None:
        self._script = script
        self._outage_s = outage_s
        self._turn = 0

    async def reset(self, seed: int, task: str) -> tuple[str, Mapping[str, object]]:
        """Wait for the end of an outage and for the reset; the first observation."""
        outage_s = self._outage_s(asyncio.get_running_loop().time())
        await asyncio.sleep(outage_s + self._script.reset_s)
        if self._script.fails_at == -1:
            raise OSError("the environment did not start")
        return str(self._script.turns[0].observation_tokens), {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, object]]:
        """Wait for the step; the next observation."""
        script, turn = self._script, self._turn
        await asyncio.sleep(script.turns[turn].step_s)
        if script.fails_at == turn:
            raise OSError("the environment broke")
        self._turn += 1
        if self._turn < len(script.turns):
            return str(script.turns[self._turn].observation_tokens), 0.0, False, False, {}
        info = {"success": script.reward > 0}
        return "1", script.reward, not script.truncated, script.truncated, info

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""
