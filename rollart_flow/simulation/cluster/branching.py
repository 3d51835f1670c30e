"""Branches of simulated attempts, as a context that is compacted now and then leaves them.

The invariant: the branches of an attempt are a function of the seed and of the attempt's name.
"""

from itertools import pairwise
from random import Random

from rollart_flow.types import Trajectory


def row_lengths(trajectory: Trajectory, most: int, seed: int) -> tuple[int, ...]:
    """Return the tokens of each row of an attempt: 1 to `most` branches, at most one for each turn.

    The chain is cut between turns; each further branch begins with the first observation. Ids stand
    for as many tokens as their value says.
    """
    turns = trajectory.turns
    count = 1
    if most > 1 and turns:
        count = Random(f"{seed}/branches/{trajectory.trajectory_id}").randint(
            1, min(most, len(turns))
        )
    cuts = [turns[len(turns) * number // count].start for number in range(1, count)]
    ends = [0, *cuts, len(trajectory.token_ids)]
    lengths = [sum(trajectory.token_ids[start:end]) for start, end in pairwise(ends)]
    prompt = trajectory.token_ids[0] if trajectory.token_ids else 0
    return (lengths[0], *(prompt + length for length in lengths[1:]))
