"""Episodes: the branches of one attempt as one trajectory, and what is the same in all of them.

The invariants: every sampled token of an episode is in exactly one of its branches as an action;
outcome and reward are the episode's, and all of its branches have them. A row whose tokens are
withheld has a reason of its own.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rollart_flow.types import WITHHELD, Trajectory, Turn

V = TypeVar("V")

_OF_THE_EPISODE = ("outcome", "reason", "error", "reward", "reward_parts", "scored_at")


def whole(branches: Sequence[Trajectory]) -> Trajectory:
    """Return an episode as one trajectory, as reward functions see it.

    Its chain is the chain of branch 0, followed by that of each further branch without the tokens
    that it shares with its parent. Its turns are those of all branches, in this order; its images
    are all that a branch shows, each once.
    """
    first, *later = branches
    if not later:
        return first
    told = next((each for each in branches if each.reason not in WITHHELD), first)
    starts = [each.policy_version_start for each in branches]
    ends = [each.policy_version_end for each in branches]
    return replace(
        first,
        reason=told.reason,
        error=told.error,
        policy_version_start=min((n for n in starts if n is not None), default=None),
        policy_version_end=max((n for n in ends if n is not None), default=None),
        token_ids=_chain(branch.token_ids[branch.shared_tokens :] for branch in branches),
        action_mask=_chain(branch.action_mask[branch.shared_tokens :] for branch in branches),
        logprobs=_chain(branch.logprobs[branch.shared_tokens :] for branch in branches),
        token_versions=_chain(branch.token_versions[branch.shared_tokens :] for branch in branches),
        kept_token_ids=None
        if first.kept_token_ids is None
        else _chain(branch.kept_token_ids or () for branch in branches),
        turns=_turns(branches),
        prefill_workers=None
        if all(branch.prefill_workers is None for branch in branches)
        else _chain(branch.prefill_workers or ("",) * len(branch.turns) for branch in branches),
        messages=_messages(branches),
        tool_calls=_total(branch.tool_calls for branch in branches),
        tool_errors=_total(branch.tool_errors for branch in branches),
        images=tuple(dict.fromkeys(_chain(branch.images or () for branch in branches))) or None,
    )


def like(branches: Sequence[Trajectory], episode: Trajectory) -> tuple[Trajectory, ...]:
    """Return branches with the outcome and the reward of their episode.

    A branch whose tokens are withheld keeps its own reason and error. The verdicts of the reward
    are in branch 0 only.
    """
    if len(branches) == 1:
        return (episode,)
    values = {name: getattr(episode, name) for name in _OF_THE_EPISODE}
    first, *later = (_with(branch, values) for branch in branches)
    return replace(first, reward_verdicts=episode.reward_verdicts), *later


def _with(branch: Trajectory, values: Mapping[str, Any]) -> Trajectory:
    changed = replace(branch, **values)
    if branch.reason not in WITHHELD:
        return changed
    return replace(changed, reason=branch.reason, error=branch.error)


def _chain(parts: Iterable[tuple[V, ...]]) -> tuple[V, ...]:
    return tuple(value for part in parts for value in part)


def _turns(branches: Sequence[Trajectory]) -> tuple[Turn, ...]:
    """Return the turns of all branches, with offsets into the chain of the episode."""
    turns: list[Turn] = []
    before = 0
    for branch in branches:
        moved = before - branch.shared_tokens
        turns += [
            replace(turn, start=turn.start + moved, end=turn.end + moved) for turn in branch.turns
        ]
        before += len(branch.token_ids) - branch.shared_tokens
    return tuple(turns)


def _messages(branches: Sequence[Trajectory]) -> str | None:
    """Return the messages of all branches in the order of their turns, each once."""
    if all(branch.messages is None for branch in branches):
        return None
    messages = []
    for branch in branches:
        stored = json.loads(branch.messages or "[]")
        numbers = sorted({message["turn"] for message in stored})
        own = set(numbers[len(numbers) - len(branch.turns) :])
        messages += [message for message in stored if message["turn"] in own]
    messages.sort(key=lambda message: int(message["turn"]))
    return json.dumps(messages, ensure_ascii=False, separators=(",", ":"))


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
