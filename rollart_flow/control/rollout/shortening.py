"""Shortening: when a context policy shortens a chain, and what it keeps."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from rollart_flow.control.context.base import ContextPolicy, with_text
from rollart_flow.control.rollout.chain_turn import ChainTurn
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.types import Observation, Tool


class Shortening:
    """A context policy with the limit of one attempt.

    Args:
        policy: settings of the context policy.
        context_tokens: most tokens of a chain.
    """

    __slots__ = ("_context_tokens", "_policy", "called", "request", "tools")

    def __init__(self, policy: ContextPolicy, context_tokens: int) -> None:
        self._policy = policy
        self._context_tokens = context_tokens
        self.request = policy.request
        self.tools: Sequence[Tool] = policy.tools
        self.called = policy.called

    def due(self, recorder: Recorder) -> bool:
        """Return whether a chain is too long, and has a turn that can be dropped."""
        limit = self._policy.at * self._context_tokens
        return len(recorder) >= limit and len(recorder.turns) > 1

    def asks(self, observation: Observation) -> Observation:
        """Return an observation with the request of the context policy."""
        return with_text(observation, self.request or "")

    def kept(
        self,
        first: Observation,
        turns: Sequence[ChainTurn],
        said: str | None,
        notes: Sequence[str],
        *,
        least: bool,
    ) -> list[ChainTurn]:
        """Return the last turns, the oldest of which shows the first messages.

        Args:
            first: what the environment showed first.
            turns: turns of the chain, at least two.
            said: answer of the policy to the request.
            notes: notes of the attempt.
            least: whether only the last turn stays.
        """
        ends = [0, *(turn.end for turn in turns)]
        lengths = [end - start for start, end in pairwise(ends)]
        most = 1 if least else len(turns) - 1
        count = min(self._policy.kept(lengths, self._context_tokens), most)
        oldest, *rest = turns[len(turns) - count :]
        return [replace(oldest, observation=self._policy.opening(first, said, notes)), *rest]
