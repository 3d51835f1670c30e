"""Attempts of captured agents that are made row by row, for tests of readers of `exchanges`.

`captured` makes a random forest of branches with a call for each answer. Every value follows from
the seed.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from rollart_flow.attempt_rows import rows_beside
from rollart_flow.models.tokenizer import tiny_tokenizer_files
from rollart_flow.rows import trajectories_table
from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.types import Reason, Trajectory
from rollart_flow.types.exchanges import StoredExchange
from rollart_flow.types.trajectories import branch_id
from tests.builders import exchange, trajectory, turn
from tests.runs import new_writer


@dataclass
class Chain:
    """A branch as it grows."""

    token_ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """-1 for a token that was not sampled here."""
    parent: int | None = None
    shared: int = 0
    kind: str = "main"
    ends: list[int] = field(default_factory=list)
    """Ends of its answers."""


def captured(name: str, seed: int, calls: int = 6, **fields: Any) -> tuple[Trajectory, ...]:
    """The rows of an attempt; branch 0 has its calls.

    Args:
        name: id of the attempt.
        seed: what the random choices follow from.
        calls: number of calls.
        **fields: fields of `Trajectory` of all rows.
    """
    random = Random(f"{name} {seed}")
    chains: list[Chain] = []
    made: list[StoredExchange] = []
    for number in range(calls):
        if made and random.random() < 0.15:
            error = {"refusal": "overflow", "error": "too long", "generating_at": None}
            made.append(exchange(number, **error))
            continue
        index = _branch(chains, random)
        made.append(_call(number, index, chains[index], name, random))
    rows = [_row(name, index, chain, fields) for index, chain in enumerate(chains)]
    made = [_counted(each, rows) for each in made]
    return replace(rows[0], exchanges=tuple(made)), *rows[1:]


def _branch(chains: list[Chain], random: Random) -> int:
    """Choose a branch to go on from, or begin one, alone or with the beginning of another."""
    if not chains or random.random() < 0.15:
        chains.append(Chain(kind=random.choice(("main", "sub_agent", "side"))))
        return len(chains) - 1
    index = random.randrange(len(chains))
    parent = chains[index]
    if random.random() < 0.3:
        shared = random.choice(parent.ends)
        kind = random.choice(("main", "side"))
        tokens = parent.token_ids[:shared]
        chains.append(Chain(tokens, [-1] * shared, index, shared, kind))
        return len(chains) - 1
    return index


def _call(number: int, index: int, chain: Chain, name: str, random: Random) -> StoredExchange:
    start = len(chain.token_ids)
    chain.token_ids += [random.randrange(32) for _ in range(random.randint(1, 5))]
    chain.versions += [-1] * (len(chain.token_ids) - start)
    answer_start = len(chain.token_ids)
    chain.token_ids += [random.randrange(32) for _ in range(random.randint(1, 4))]
    chain.versions += [number // 2] * (len(chain.token_ids) - answer_start)
    chain.ends.append(len(chain.token_ids))
    return exchange(
        number,
        kind=chain.kind,
        trajectory_id=branch_id(name, index),
        start=start,
        answer_start=answer_start,
        answer_end=len(chain.token_ids),
        answer=json.dumps({"text": f"answer {number}"}),
        answer_id=f"{name}{number}",
    )


def _row(name: str, index: int, chain: Chain, fields: dict[str, Any]) -> Trajectory:
    trained = chain.kind != "side"
    sampled = [version >= 0 for version in chain.versions]
    own = [version for version in chain.versions if version >= 0] if trained else []
    withheld = {} if trained else {"reason": Reason.UNTRAINED_CALL}
    return trajectory(
        name,
        trajectory_id=branch_id(name, index),
        episode_id=name,
        branch=index,
        parent=None if chain.parent is None else branch_id(name, chain.parent),
        shared_tokens=chain.shared,
        token_ids=tuple(chain.token_ids),
        action_mask=tuple(each and trained for each in sampled),
        logprobs=tuple(-0.5 if each else 0.0 for each in sampled),
        token_versions=tuple(chain.versions),
        policy_version_start=own[0] if own else None,
        policy_version_end=own[-1] if own else None,
        turns=(turn(end=len(chain.token_ids)),),
        **(fields | withheld),
    )


def _counted(made: StoredExchange, rows: list[Trajectory]) -> StoredExchange:
    """Return a call with the number of its trained tokens."""
    for row in rows:
        if row.trajectory_id == made.trajectory_id:
            trained = sum(row.action_mask[made.answer_start : made.answer_end])
            return replace(made, trained_tokens=trained)
    return made


def captured_run(folder: Path, attempts: Iterable[tuple[Trajectory, ...]], name: str = "a") -> Run:
    """A finished run with these attempts and their calls, in one commit."""
    writer = new_writer(folder, name)
    rows = [row for branches in attempts for row in branches]
    writer.commit_many({"trajectories": trajectories_table(rows), **rows_beside(rows)})
    writer.close(RunStatus.FINISHED)
    return open_run(str(folder / name))


def add_tokenizer(run: Run) -> None:
    """Give a run the tokenizer of `tests.gateway.core.rig`, as that of its policy."""
    folder = Path(run.uri) / "policy"
    folder.mkdir()
    for name, text in tiny_tokenizer_files((), 1 << 18).items():
        (folder / name).write_text(text)
