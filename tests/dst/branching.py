"""Attempts of several branches, made of attempts of one chain.

The invariant: every sampled token is an action of exactly one branch.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from rollart_flow.types import Trajectory
from rollart_flow.types.trajectories import branch_id


def branched(branches: Sequence[Trajectory], chance: Random) -> tuple[Trajectory, ...]:
    """Cut the chain of an attempt between turns; each branch shares what came before."""
    (row,) = branches
    inner = range(1, len(row.turns))
    cuts = [place for place in inner if chance.random() < 0.5]
    made: list[Trajectory] = []
    for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(row.turns)], strict=True)):
        made.append(_branch(row, number, first, last))
    return tuple(made)


def _branch(row: Trajectory, number: int, first: int, last: int) -> Trajectory:
    """The turns from `first` up to `last`, which share the chain before them with the parent."""
    shared = row.turns[first].start if number else 0
    end = row.turns[last - 1].end if row.turns else len(row.token_ids)
    own = slice(shared, end)
    versions = [version for version in row.token_versions[own] if version >= 0]
    return replace(
        row,
        trajectory_id=branch_id(row.trajectory_id, number),
        branch=number,
        parent=branch_id(row.trajectory_id, number - 1) if number else None,
        shared_tokens=shared,
        token_ids=row.token_ids[:end],
        action_mask=(*[False] * shared, *row.action_mask[own]),
        logprobs=(*[0.0] * shared, *row.logprobs[own]),
        token_versions=(*[-1] * shared, *row.token_versions[own]),
        policy_version_start=versions[0] if versions else None,
        policy_version_end=versions[-1] if versions else None,
        turns=row.turns[first:last],
    )
