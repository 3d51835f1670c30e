"""Builders of trajectories, samples, batches and rows: one set for all tests.

Every value follows from the arguments, and any field can be given instead. Runs made of these rows
are in `tests.runs`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from rollart_flow.control.protocols import Change
from rollart_flow.rows import events_table, trajectories_table
from rollart_flow.schema import row_schema, to_table
from rollart_flow.types import (
    Assignment,
    Batch,
    Event,
    EventKind,
    Outcome,
    Reason,
    Sample,
    Sampling,
    Split,
    Trajectory,
    Turn,
)
from rollart_flow.types.exchanges import StoredExchange

MOMENT = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

Row = dict[str, object]


def turn(action: str = "heads", reward: float = 0.0, **fields: Any) -> Turn:
    """A turn of five tokens."""
    made = Turn(0, 5, "coin", action, reward, 0.1, 0.2, "CPU", "engine-0", "stop")
    return replace(made, **fields)


def exchange(number: int = 0, **fields: Any) -> StoredExchange:
    """A call of the main agent, of a second, that sampled nothing and goes on from the last one."""
    made = StoredExchange(
        number=number,
        wire="chat",
        kind="main",
        evidence="echo" if number else "root",
        parent=number - 1 if number else None,
        request='{"messages": [{"role": "user", "text": "go"}]}',
        reused_messages=2 * number,
        arrived_at=MOMENT + timedelta(seconds=number),
        generating_at=MOMENT + timedelta(seconds=number + 0.25),
        ended_at=MOMENT + timedelta(seconds=number + 1),
    )
    return replace(made, **fields)


def trajectory(
    group_id: str = "g",
    attempt: int = 0,
    *,
    start: int = 0,
    reward: float | None = 1.0,
    **fields: Any,
) -> Trajectory:
    """A completed attempt of one turn of five tokens, two of them generated.

    Args:
        start: policy version of all its tokens.
        reward: its score; None if it is not scored.
        **fields: fields of `Trajectory` that differ.
    """
    name = f"{group_id}-{attempt:02d}"
    made = Trajectory(
        trajectory_id=name,
        episode_id=name,
        group_id=group_id,
        task_id="toss",
        domain="coin",
        attempt=attempt,
        outcome=Outcome.COMPLETED,
        task="{}",
        sampling=Sampling(),
        split=Split.TRAIN,
        env_seed=1,
        env_version="coin/1",
        created_at=MOMENT,
        finished_at=MOMENT,
        reset_s=0.0,
        policy_version_start=start,
        policy_version_end=start,
        token_ids=(1, 2, 3, 4, attempt),
        action_mask=(False, False, False, True, True),
        logprobs=(0.0, 0.0, 0.0, -0.5, -0.25),
        token_versions=(-1, -1, -1, start, start),
        turns=(turn(reward=reward or 0.0),),
        reward=reward,
        scored_at=None if reward is None else MOMENT,
    )
    return replace(made, **fields)


TRAJECTORY = trajectory(
    trajectory_id="t",
    episode_id="e",
    task_id="task",
    domain="frozenlake",
    attempt=2,
    outcome=Outcome.TRUNCATED,
    reason=Reason.TURN_LIMIT,
    task='{"question": "1+1 \\u00e9"}',
    sampling=Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        max_tokens=8,
        stop_token_ids=(1, 2),
        allowed_token_ids=(1, 2, 5, 6, 7, 9),
    ),
    split=Split.EVALUATION,
    env_seed=2**40,
    env_version="FrozenLake-v1",
    finished_at=MOMENT + timedelta(microseconds=1),
    reset_s=0.25,
    policy_version_start=3,
    policy_version_end=4,
    token_ids=(5, 6, 7),
    action_mask=(False, True, True),
    logprobs=(0.0, float(np.float32(-0.1)), float(np.float32(-1e-20))),
    token_versions=(-1, 3, 4),
    kept_token_ids=((6, 9), (7,)),
    turns=(turn("do\nit", 0.5, end=3, observation="see ä", finish_reason="length"),),
    solved=False,
    reward=0.5,
    reward_parts={"goal": 0.25, "form": 0.25},
    prefill_workers=("prefill-h800-0",),
    diff="--- a/x\n+++ b/x\n",
    verifier="9f",
    suspicions=("touched_tests: tests/test_x.py",),
)
"""A trajectory with every field but `error` set."""


def attempt(number: int) -> Trajectory:
    """The same at another attempt, and so another trajectory."""
    return replace(TRAJECTORY, trajectory_id=f"t{number}", episode_id=f"t{number}", attempt=number)


def answered(*actions: str, **payload: object) -> Trajectory:
    """An unscored trajectory with these actions, at a task of this payload."""
    turns = tuple(turn(action) for action in actions)
    task = json.dumps(payload)
    return trajectory(reward=None, turns=turns, task=task, task_id="math/1", domain="math")


def branched(
    *starts: int, group_id: str = "g", attempt: int = 0, **fields: Any
) -> tuple[Trajectory, ...]:
    """An attempt with a branch for each start version, all of which came from branch 0.

    Each shares three tokens of it and has two of its own, which are generated.
    """
    first = trajectory(group_id, attempt, start=starts[0], **fields)
    return (
        first,
        *(
            replace(
                first,
                trajectory_id=f"{first.trajectory_id}.{number}",
                branch=number,
                parent=first.trajectory_id,
                shared_tokens=3,
                policy_version_start=start,
                policy_version_end=start,
                token_ids=(1, 2, 3, 40 + number, 50 + attempt),
                token_versions=(-1, -1, -1, start, start),
                turns=(turn(start=3, end=5, reward=0.0),),
            )
            for number, start in enumerate(starts[1:], start=1)
        ),
    )


def numbered(number: int, version: int = 0, tokens: int = 6) -> Trajectory:
    """One of many trajectories that all differ, four in each group."""
    seen = tokens // 2
    acted = tokens - seen
    return trajectory(
        f"g{number // 4}",
        number % 4,
        start=version,
        trajectory_id=f"t{number}",
        episode_id=f"t{number}",
        task_id=f"task{number // 4}",
        domain=("frozenlake", "arithmetic")[number % 2],
        env_seed=number,
        token_ids=tuple((number * 31 + i) % 1000 for i in range(tokens)),
        action_mask=(False,) * seen + (True,) * acted,
        logprobs=(0.0,) * seen + tuple(-((number + i) % 97) / 128 for i in range(acted)),
        token_versions=(-1,) * seen + (version,) * acted,
        turns=(turn(reward=1.0, end=tokens),),
        solved=True,
        reward=float(number % 2),
        reward_parts={"goal": 1.0},
    )


def group(group_id: str, size: int = 2, *, start: int = 0) -> list[Trajectory]:
    """All members of a group."""
    return [trajectory(group_id, attempt, start=start) for attempt in range(size)]


def table(*trajectories: Trajectory) -> pa.Table:
    """Uncommitted rows of `trajectories`."""
    return trajectories_table(trajectories)


def trajectories(numbers: Iterable[int], version: int = 0, tokens: int = 6) -> pa.Table:
    """Uncommitted rows of `trajectories`, by number."""
    return trajectories_table(numbered(number, version, tokens) for number in numbers)


def batch_table(columns: Mapping[str, Sequence[object]]) -> pa.Table:
    """A batch with these columns, those of the schema in their declared types."""
    declared = {f.name: f.type for s in ("trajectories", "batches") for f in row_schema(s)}
    return pa.table({name: pa.array(of, declared.get(name)) for name, of in columns.items()})


def sample(
    group_id: str, attempt: int, *, start: int | None = 0, scored: bool = True, **fields: Any
) -> Sample:
    """The control plane's summary of a committed trajectory, completed unless said otherwise."""
    made = Sample(
        trajectory_id=f"{group_id}-{attempt:02d}",
        group_id=group_id,
        domain="a",
        attempt=attempt,
        outcome=Outcome.COMPLETED,
        policy_version_start=start,
        policy_version_end=start,
        scored=scored,
        tokens=5,
    )
    return replace(made, **fields)


def committed(assignment: Assignment, **fields: Any) -> Change:
    """What the buffer reports when an attempt's trajectory is committed."""
    domain = assignment.task.domain
    return Change(
        committed=sample(assignment.group_id, assignment.attempt, domain=domain, **fields)
    )


def batch_of(step: int, *groups: str, size: int = 2, served: int = 0) -> Batch:
    """A fresh batch of whole groups, each with attempts from 0."""
    ids = [(f"{group}-{i:02d}", group) for group in groups for i in range(size)]
    return Batch(
        step=step,
        policy_version=served,
        trained_version=step - 1,
        trajectory_ids=tuple(trajectory for trajectory, _ in ids),
        group_ids=tuple(group for _, group in ids),
        staleness=(0,) * len(ids),
    )


def batch_row(step: int, position: int, trajectory_id: str, group_id: str, **fields: object) -> Row:
    """A row of `batches`: fresh, with an advantage of 1."""
    row: Row = {
        "step": step,
        "position": position,
        "trajectory_id": trajectory_id,
        "group_id": group_id,
        "advantage": [1.0],
        "weight": 1.0,
        "staleness": 0,
        "policy_version": 0,
        "trained_version": step - 1,
    }
    return row | fields


def manifest(step: int, names: Sequence[str]) -> pa.Table:
    """Uncommitted rows of `batches` of a step over members of groups."""
    rows = [batch_row(step, place, name, name[:-3]) for place, name in enumerate(names)]
    return to_table("batches", rows)


def batches(step: int, numbers: Sequence[int], version: int = 0) -> pa.Table:
    """Uncommitted rows of `batches` of a step over numbered trajectories of a version."""
    served = max(0, step - 2)
    ages = {"staleness": served - version, "policy_version": served}
    rows = [
        batch_row(step, place, f"t{n}", f"g{n // 4}", advantage=[n / 8], **ages)
        for place, n in enumerate(numbers)
    ]
    return to_table("batches", rows)


def step_row(step: int, fields: Mapping[str, object] | None = None) -> pa.Table:
    """One uncommitted row of `steps`."""
    names = "loss grad_norm reward_mean staleness_mean ratio_mean ratio_max clip_fraction kl"
    seconds = "wait_s suspend_s update_s resume_s train_s publish_s step_s entropy learning_rate"
    row: Row = dict.fromkeys((*names.split(), *seconds.split()), 0.25)
    row |= {"step": step, "policy_version": step, "staleness_max": 1, "zero_variance_groups": 0}
    row |= {"trajectories": 4, "tokens": 24, "action_tokens": 12, "threads": 1}
    row |= {"fingerprint": f"{step:064x}", "kernels": "{}", "finished_at": MOMENT}
    return to_table("steps", [row | dict(fields or {})])


def events(*subjects: str) -> pa.Table:
    """Uncommitted rows of `events`."""
    dropped = (Event(EventKind.DROP, name, Reason.FILTERED, step=1) for name in subjects)
    return events_table((MOMENT, event) for event in dropped)
