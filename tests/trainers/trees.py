"""Episodes whose branches are a tree of token chains, as rows of a batch."""

from collections.abc import Sequence
from random import Random

import pyarrow as pa

from tests.trainers.cases import VOCABULARY, Row, table

Tree = list[tuple[Row, int]]
"""The branches of an episode, each with the number of tokens that it shares with an earlier one."""


def tree(branches: int, seed: int, prompt: Sequence[int] = ()) -> Tree:
    """A random tree: each branch leaves an earlier one at a random place, so at several depths."""
    chance = Random(seed)
    rows: Tree = []
    for _ in range(branches):
        before = chance.choice(rows)[0].token_ids if rows else [*prompt, 1]
        shared = chance.randrange(2, len(before)) if rows else 0
        chain = before[:shared] if rows else before
        own = chance.randrange(4, 14)
        mask = [False, *(chance.random() < 0.6 for _ in range(own - 2)), True]
        tokens = [chance.randrange(VOCABULARY) for _ in range(own)]
        made = Row(
            token_ids=[*chain, *tokens],
            action_mask=[*[False] * len(chain), *mask],
            logprobs=[*[0.0] * len(chain), *(-3.0 * acted * chance.random() for acted in mask)],
            advantage=[chance.uniform(-1, 1)],
            weight=chance.uniform(0.5, 1.5),
        )
        rows.append((made, shared))
    return rows


def branched_table(trees: Sequence[Tree]) -> pa.Table:
    """The rows of several episodes, with the columns of branches."""
    rows = [
        (f"e{place}", branch, *each)
        for place, t in enumerate(trees)
        for branch, each in enumerate(t)
    ]
    made = table([row for _, _, row, _ in rows])
    columns = {
        "episode_id": pa.array([name for name, *_ in rows]),
        "branch": pa.array([branch for _, branch, *_ in rows], pa.int32()),
        "shared_tokens": pa.array([shared for *_, shared in rows], pa.int32()),
    }
    for name, values in columns.items():
        made = made.append_column(name, values)
    return made
