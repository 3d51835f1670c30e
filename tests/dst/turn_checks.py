"""What holds of the turns of the branches of an episode, judged on the rows alone."""

import json
from collections.abc import Iterable, Mapping, Sequence

from rollart_flow.types import TRAINABLE, Trajectory, Turn

Token = tuple[int, float, int]
"""Token id, logprob, policy version."""


def infidelity(branches: Sequence[Trajectory], sessions: Iterable[list[Token]]) -> str | None:
    """The difference between an episode's actions and what engines sampled; None if equal.

    Every sampled token is an action of exactly one turn, in exactly one branch. Another branch may
    quote the turn, with the same tokens and without an action.

    Args:
        branches: the rows of an episode.
        sessions: tokens that engines sampled for it, for each run of the attempt.
    """
    turns: dict[int, list[Token]] = {}
    for row in branches:
        found = _actions(row, len(turns))
        if isinstance(found, str):
            return f"{row.trajectory_id}: {found}"
        if twice := turns.keys() & found.keys():
            return f"{row.trajectory_id}: turns {sorted(twice)} are in an earlier branch too"
        turns |= found
    acted = [token for number in sorted(turns) for token in turns[number]]
    sampled = [each for each in sessions if each]
    lost_run = branches[0].outcome not in TRAINABLE or not sampled
    if not (acted in sampled or (acted == [] and lost_run)):
        return f"its actions are {acted}, but engines sampled {sampled}"
    return next(filter(None, (_misquote(row, turns) for row in branches)), None)


def _actions(row: Trajectory, before: int) -> dict[int, list[Token]] | str:
    """The action tokens of each turn of a row, or what is wrong with its lists.

    Args:
        row: the row.
        before: turns of the branches before it.
    """
    lists = (row.token_ids, row.logprobs, row.token_versions)
    if not all(len(each) == len(row.action_mask) for each in lists):
        return f"lists of {len(row.action_mask)} and {[*map(len, lists)]} are not aligned"
    tokens = list(zip(*lists, strict=True))
    acted = [token for token, mask in zip(tokens, row.action_mask, strict=True) if mask]
    observed = [token for token, mask in zip(tokens, row.action_mask, strict=True) if not mask]
    if any(logprob != 0.0 or version != -1 for _, logprob, version in observed):
        return "an observation token has a logprob or a version"
    versions = [version for _, _, version in acted]
    ends = (row.policy_version_start, row.policy_version_end)
    if ends != ((versions[0], versions[-1]) if versions else (None, None)):
        return f"its versions are {ends}, but its tokens have {versions}"
    numbers = _numbers(row, before)
    if len(numbers) != len(row.turns):
        return f"its messages have the turns {numbers}, of {len(row.turns)}"
    found = {
        number: _within(turn, tokens, row.action_mask)
        for number, turn in zip(numbers, row.turns, strict=True)
    }
    if sum(map(len, found.values())) != len(acted):
        return f"{len(acted)} actions, of which its turns have {[*map(len, found.values())]}"
    return found


def _numbers(row: Trajectory, before: int) -> list[int]:
    """The numbers in the attempt of the turns that a row has sampled."""
    if row.messages is None:  # each branch goes on from the last one
        return list(range(before, before + len(row.turns)))
    numbers = sorted({form["turn"] for form in json.loads(row.messages)})
    return numbers[len(numbers) - len(row.turns) :]


def _within(turn: Turn, tokens: Sequence[Token], mask: Sequence[bool]) -> list[Token]:
    return [tokens[at] for at in range(turn.start, turn.end) if mask[at]]


def _misquote(row: Trajectory, turns: Mapping[int, list[Token]]) -> str | None:
    """The first turn of another branch that a row does not show as it was sampled."""
    for form in json.loads(row.messages or "[]"):
        if "tokens" not in form:
            continue
        number, span = form["turn"], slice(*form["tokens"])
        sampled = [token for token, _, _ in turns.get(number, ())]
        if list(row.token_ids[span]) != sampled or any(row.action_mask[span]):
            shown = row.token_ids[span]
            return f"{row.trajectory_id} shows turn {number} as {shown}, not as {sampled}"
    return None
