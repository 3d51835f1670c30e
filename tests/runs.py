"""Runs that are written through the store's own writer, for tests of their readers.

`small_run` has four steps over two domains with everything that a real run has: several turns,
staleness, drops, events, bindings, weights and evaluations. Every value follows from the arguments.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import polars as pl
import pyarrow as pa

from rollart_flow.rows import events_table, trajectories_table
from rollart_flow.schema import to_table
from rollart_flow.store import Run, RunInfo, RunStatus, RunWriter, open_run
from rollart_flow.store.pins import described_pins, pin
from rollart_flow.types import Event, EventKind, Outcome, Reason, Sampling, Trajectory, Turn
from tests import builders
from tests.builders import Row, batch_row, step_row

STEPS = 4
GROUP_SIZE = 4
DOMAINS = ("frozenlake", "arithmetic")
BATCH_SIZE = GROUP_SIZE * len(DOMAINS)
ALPHA = 1
BEGAN = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)

_STEP_S = 2.0
_SECONDS = {
    "wait_s": 1.0, "suspend_s": 0.01, "update_s": 0.02, "resume_s": 0.01, "train_s": 0.75,
    "publish_s": 0.05, "step_s": _STEP_S,
}  # fmt: skip
_TOKENS_SEEN, _TOKENS_SAID = 5, 2
_SUCCESS = {0: 0.125, 2: 0.5, 4: 0.9375}
"""Sampled success by the step after which it was evaluated."""


def info(name: str = "a") -> RunInfo:
    """Information of a run that this process owns."""
    return RunInfo(name=name, pipeline="test", seed=7, settings={"buffer.alpha": 1})


def new_writer(folder: Path, name: str = "a") -> RunWriter:
    """The writer of a new run in a folder."""
    return RunWriter.create(str(folder / name), info(name))


def seqs(frame: pl.LazyFrame) -> list[int]:
    """All seqs of a table, ascending."""
    return sorted(frame.select("seq").collect()["seq"].to_list())


def ids(frame: pl.LazyFrame) -> list[str]:
    """All trajectory ids of a table in order of seq."""
    return frame.sort("seq").select("trajectory_id").collect()["trajectory_id"].to_list()


def small_run(
    folder: Path, name: str = "small", status: RunStatus = RunStatus.FINISHED, steps: int = STEPS
) -> Run:
    """Write a run into a folder that serves as store, and open it.

    Args:
        folder: the store; the run lies in a folder of its name there.
        status: how it ended.
        steps: training steps that it took, at most `STEPS`.
    """
    uri = str(folder / name)
    settings = {"name": "two-domains", "nodes": {"buffer": {"kind": "buffer", "alpha": ALPHA}}}
    writer = RunWriter.create(uri, RunInfo(name, "two-domains", 0, settings))
    (folder / name / "pipeline.py").write_text('"""A pipeline."""\n')
    _begin(writer)
    for step in range(1, steps + 1):
        _step(writer, step)
    writer.close(status, "the trainer ran out of memory" if status is RunStatus.FAILED else None)
    return open_run(uri)


def _at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def _begin(writer: RunWriter) -> None:
    fallback = Event(EventKind.FALLBACK, "generation-0", detail={"requested": "H20"})
    writer.commit_many(
        {
            "weights": _weights(0, 0.0),
            "evaluations": _evaluations(0),
            "events": events_table([(_at(0.0), fallback)]),
            "bindings": to_table(
                "bindings",
                [
                    {
                        "worker": "generation-0",
                        "role": "generation",
                        "domain": "default",
                        "requested": "H20",
                        "granted": "CPU",
                        "fallback": True,
                        "node": "node-0",
                        "cpus": 0.5,
                        "gpus": 0.0,
                        "bound_at": _at(0.0),
                    }
                ],
            ),
        }
    )


def _step(writer: RunWriter, step: int) -> None:
    """All rows of one step, in the order in which a run commits them."""
    members = list(trajectories(step))
    dropped = list(_dropped(step, members[0]))
    writer.commit("trajectories", trajectories_table([*members, *dropped]))
    served = max(0, step - 2)
    writer.commit_many(
        {
            "batches": to_table(
                "batches", [_batch_row(step, served, *m) for m in enumerate(members)]
            ),
            "events": events_table(
                (_at(step * _STEP_S + offset), Event(kind, f"version-{step - 1}", step=step))
                for offset, kind in enumerate(
                    (EventKind.SUSPEND, EventKind.UPDATE, EventKind.RESUME)
                )
            ),
        }
    )
    writer.commit_many(
        {
            "steps": _step_row(step, members),
            "weights": _weights(step, step * _STEP_S),
        }
    )
    if step in _SUCCESS:
        writer.commit("evaluations", _evaluations(step))


def trajectories(step: int) -> Iterator[Trajectory]:
    """The trajectories that a step trains on, group by group."""
    for domain in DOMAINS:
        for attempt in range(GROUP_SIZE):
            yield trajectory(step, domain, attempt)


def trajectory(step: int, domain: str, attempt: int) -> Trajectory:
    """One attempt: three turns on the lake, one in arithmetic; odd attempts fail the task."""
    random = Random(f"{step} {domain} {attempt}")
    version = max(0, step - 2 - attempt % 2)
    count = 3 if domain == "frozenlake" else 1
    said = _TOKENS_SEEN * [False] + _TOKENS_SAID * [True]
    solved = attempt % 2 == 0
    turns = tuple(_turn(domain, number, count, solved, random) for number in range(count))
    created = step * _STEP_S + attempt / 8
    finished = created + 0.01 + sum(turn.generate_s + turn.step_s for turn in turns)
    name = f"s{step}-{domain}"
    return builders.trajectory(
        name,
        attempt,
        start=version,
        trajectory_id=f"{name}-{attempt}",
        episode_id=f"{name}-{attempt}",
        task_id=f"{domain}-{step}",
        domain=domain,
        task='{"n": 1}',
        sampling=Sampling(max_tokens=_TOKENS_SAID),
        env_seed=step,
        env_version=f"{domain}-v1",
        created_at=_at(created),
        finished_at=_at(finished),
        reset_s=0.01,
        token_ids=tuple(random.randrange(32) for _ in said * count),
        action_mask=tuple(said * count),
        logprobs=tuple(-random.random() if sampled else 0.0 for sampled in said * count),
        token_versions=tuple(version if sampled else -1 for sampled in said * count),
        turns=turns,
        solved=solved,
        reward=float(solved),
        reward_parts={"goal": float(solved)},
        scored_at=_at(finished + 0.1),
    )


def _turn(domain: str, number: int, count: int, solved: bool, random: Random) -> Turn:
    length = _TOKENS_SEEN + _TOKENS_SAID
    lake = domain == "frozenlake"
    return builders.turn(
        "right" if lake else "42",
        float(solved and number == count - 1),
        start=number * length,
        end=(number + 1) * length,
        observation=f"SFFF\nFHFP step {number}" if lake else "12+30=",
        generate_s=0.1 + random.random() / 4,
        step_s=0.01 + random.random() / 8,
        worker="generation-0",
    )


def _dropped(step: int, like: Trajectory) -> Iterator[Trajectory]:
    """Attempts that came to nothing, each for its reason."""
    reasons = {
        Outcome.FAILED: Reason.ENVIRONMENT_ERROR,
        Outcome.STALE: Reason.STALENESS_BOUND,
        Outcome.REDUNDANT: Reason.GROUP_COMPLETE,
    }
    for attempt, (outcome, reason) in enumerate(reasons.items(), start=GROUP_SIZE):
        yield replace(
            like,
            trajectory_id=f"s{step}-{outcome}",
            episode_id=f"s{step}-{outcome}",
            attempt=attempt,
            outcome=outcome,
            reason=reason,
            error="the lake melted" if outcome is Outcome.FAILED else None,
            reward=None,
            reward_parts=None,
            scored_at=None,
            solved=None,
        )


def _batch_row(step: int, served: int, position: int, member: Trajectory) -> Row:
    assert member.policy_version_start is not None
    return batch_row(
        step,
        position,
        member.trajectory_id,
        member.group_id,
        advantage=[1.0 if member.solved else -1.0],
        staleness=served - member.policy_version_start,
        policy_version=served,
    )


def _step_row(step: int, members: list[Trajectory]) -> pa.Table:
    return step_row(
        step,
        {
            "loss": 0.5 / step,
            "grad_norm": 1.0 / step,
            "reward_mean": sum(member.reward or 0.0 for member in members) / len(members),
            "staleness_max": min(ALPHA, max(0, step - 2)),
            "trajectories": len(members),
            "tokens": sum(len(member.token_ids) for member in members),
            "action_tokens": sum(sum(member.action_mask) for member in members),
            **_SECONDS,
            "kernels": json.dumps({"device": "cpu"}),
            "finished_at": _at((step + 1) * _STEP_S),
        },
    )


def _weights(version: int, seconds: float) -> pa.Table:
    return to_table(
        "weights",
        [
            {
                "policy_version": version,
                "uri": f"weights/{version}",
                "manifest": "[]",
                "size_bytes": 1024,
                "checksum": f"{version:064x}",
                "checkpoint": version % 2 == 0,
                "published_at": _at(seconds),
            }
        ],
    )


def _evaluations(step: int) -> pa.Table:
    metrics = {"success_sampled": _SUCCESS[step], "success": float(step == STEPS)}
    return to_table(
        "evaluations",
        [
            {
                "step": step,
                "policy_version": step,
                "domain": domain,
                "metric": metric,
                "value": value,
                "n": 64,
            }
            for domain in DOMAINS
            for metric, value in metrics.items()
        ],
    )


def learning_runs(folder: Path) -> tuple[Run, Run]:
    """A run of two trajectories, and one whose step drew a trajectory of it, and one of its own."""
    other, learner = (new_writer(folder, name) for name in ("other", "learner"))
    other.commit("trajectories", builders.table(*(builders.trajectory("g", n) for n in range(2))))
    pins = {"stored": [pin(other.uri)]}
    began = Event(EventKind.RUN, "learner", detail=described_pins(pins))
    learner.commit("events", events_table([(BEGAN, began)]))
    learner.commit("trajectories", builders.table(builders.trajectory("own")))
    own_seq = learner.last_seq
    rows = [
        batch_row(1, 0, "other/g-01", "other/g", source_run=other.uri, source_seq=2),
        batch_row(1, 1, "self/own-00", "self/own", source_seq=own_seq),
    ]
    rows = [row | {"source_version": 1, "episode_id": row["trajectory_id"]} for row in rows]
    learner.commit("batches", to_table("batches", rows))
    learner.commit("steps", step_row(1))
    other.close()
    learner.close()
    return open_run(other.uri), open_run(learner.uri)
