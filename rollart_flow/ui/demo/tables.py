"""Rows of the demonstration run in the tables besides `trajectories`, and its events."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from statistics import fmean, pstdev
from typing import Any

import polars as pl
import pyarrow as pa

from rollart_flow.schema import to_table
from rollart_flow.store.replays import LOGPROBS_SCHEMA
from rollart_flow.types import Event, EventKind, Outcome, Reason, Trajectory
from rollart_flow.ui.demo.attempts import BEGAN, STEP_S, TRAIN_S, at, domains_of, formed_s

_PHASES = {"suspend_s": 0.4, "update_s": 0.9, "resume_s": 0.2, "train_s": 9.5, "publish_s": 0.8}


def batch_rows(step: int, members: Sequence[Trajectory]) -> pa.Table:
    """Return the manifest of a step: advantages are rewards minus their group's mean, scaled."""
    served = max(0, step - 2)
    groups: dict[str, dict[str, float]] = defaultdict(dict)
    for each in members:
        groups[each.group_id][each.episode_id] = each.reward or 0.0
    starts: dict[str, int] = {}
    for each in members:
        start = each.policy_version_start or 0
        starts[each.episode_id] = min(start, starts.get(each.episode_id, start))
    rows = []
    for position, each in enumerate(members):
        rewards = [*groups[each.group_id].values()]
        deviation = pstdev(rewards)
        own = 0.0 if deviation == 0 else ((each.reward or 0.0) - fmean(rewards)) / deviation
        actions = sum(each.action_mask)
        by_token = each.domain == "sums" and each.attempt == 0
        decay = [round(own * 0.98**i, 6) for i in range(actions)] if by_token else [own]
        rows.append(
            {
                "step": step, "position": position, "trajectory_id": each.trajectory_id,
                "group_id": each.group_id, "episode_id": each.episode_id, "advantage": decay,
                "weight": 1.0 / sum(m.episode_id == each.episode_id for m in members),
                "staleness": served - starts[each.episode_id], "policy_version": served,
                "trained_version": step - 1, "lag": step - 1 - starts[each.episode_id],
            }
        )  # fmt: skip
    return to_table("batches", rows)


def replayed_logprobs(step: int, member: Trajectory) -> pl.DataFrame:
    """Return logprobs of a trajectory as a replay would keep them: near the engine's."""
    rows = [
        (at, logprob + 1e-5 * (at % 7 - 3), step, step - 1, logprob + 0.06 * (at % 7 - 3))
        for at, (logprob, acts) in enumerate(zip(member.logprobs, member.action_mask, strict=True))
        if acts
    ]
    return pl.DataFrame(rows, schema=LOGPROBS_SCHEMA, orient="row")


def kept_logprobs(members: Sequence[Trajectory]) -> pa.Table:
    """Return logprobs of a batch as the trainer would keep them: a little off the engine's."""
    lists = []
    for each in members:
        acts = zip(each.logprobs, each.action_mask, strict=True)
        lists.append(
            [logprob + 0.05 * (at % 5 - 2) for at, (logprob, act) in enumerate(acts) if act]
        )
    ids = [each.trajectory_id for each in members]
    return pa.table({"trajectory_id": ids, "logprobs": lists})


def step_table(step: int, members: Sequence[Trajectory], manifest: pa.Table) -> pa.Table:
    """Return the row of `steps` of a step."""
    stale, lag = manifest["staleness"].to_pylist(), manifest["lag"].to_pylist()
    rewards = defaultdict(set)
    for each in members:
        rewards[each.group_id].add(each.reward)
    row: dict[str, Any] = {
        "step": step, "policy_version": step, "loss": round(0.4 / step - 0.02, 5),
        "grad_norm": round(1.8 / step + 0.1, 5),
        "reward_mean": fmean(each.reward or 0.0 for each in members if each.branch == 0),
        "staleness_max": max(stale), "staleness_mean": fmean(stale),
        "lag_max": max(lag), "lag_mean": fmean(lag),
        "ratio_mean": 1.0 + 0.002 * step, "ratio_max": 1.3 + 0.05 * step,
        "clip_fraction": 0.01 * step, "kl": 0.001 * step, "entropy": 2.0 - 0.12 * step,
        "zero_variance_groups": sum(len(values) == 1 for values in rewards.values()),
        "learning_rate": 1e-5, "trajectories": len(members),
        "tokens": sum(len(each.token_ids) for each in members),
        "action_tokens": sum(sum(each.action_mask) for each in members),
        "wait_s": STEP_S - TRAIN_S, "step_s": STEP_S, **_PHASES,
        "fingerprint": _fingerprint(step), "threads": 2,
        "kernels": json.dumps({"device": "cpu", "dtype": "float32"}),
        "finished_at": at(step * STEP_S),
    }  # fmt: skip
    return to_table("steps", [row])


def _fingerprint(version: int) -> str:
    return sha256(f"version {version}".encode()).hexdigest()


def weights_table(version: int) -> pa.Table:
    """Return the row of `weights` of a version."""
    row = {
        "policy_version": version, "uri": f"weights/v{version:06d}", "manifest": "[]",
        "size_bytes": 4096, "checksum": _fingerprint(version), "checkpoint": version % 2 == 0,
        "published_at": at(version * STEP_S),
    }  # fmt: skip
    return to_table("weights", [row])


def evaluations_table(step: int) -> pa.Table:
    """Return the evaluations after a step: success rises, and pass@4 with it."""
    rows = []
    for domain in domains_of(2):
        greedy = min(0.95, 0.15 + 0.13 * step + 0.02 * len(domain))
        scores = {"success": greedy, "success_sampled": greedy * 0.9, "pass@4": greedy**0.5}
        for metric, value in scores.items():
            ends = {"low": max(0.0, value - 0.12), "high": min(1.0, value + 0.1)}
            row = {"step": step, "policy_version": step, "domain": domain, "metric": metric}
            rows.append(row | {"value": value, "n": 64} | ends)
    return to_table("evaluations", rows)


def bindings_table() -> pa.Table:
    """Return the workers, one of which got another class than it asked for."""
    rows = [
        ("generation-0", "generation", "default", "H20", "H20", 1.0),
        ("generation-1", "generation", "repair", "H800", "H20", 1.0),
        ("training-0", "training", "default", "H800", "H800", 2.0),
    ]
    names = ("worker", "role", "domain", "requested", "granted", "gpus")
    rest = {"node": "node-0", "cpus": 2.0, "bound_at": at(0.0)}
    made = [dict(zip(names, row, strict=True)) | rest for row in rows]
    return to_table(
        "bindings", [row | {"fallback": row["requested"] != row["granted"]} for row in made]
    )


def sandboxes_table(users: Sequence[Trajectory]) -> pa.Table:
    """Return the boxes of attempts; two were killed, one leaked, one was never leased."""
    rows = [_box(number, each) for number, each in enumerate(users)]
    unused = _box(len(users), users[0]) | dict.fromkeys(
        ("trajectory_id", "task_id", "leased_at", "wait_s", "ready_at", "peak_memory_mb")
    )
    rows.append(unused | {"execs": 0, "exec_s": 0.0, "killed_by": "health", "error": "no answer"})
    return to_table("sandboxes", rows)


def _box(number: int, user: Trajectory) -> dict[str, object]:
    began = (user.created_at - BEGAN).total_seconds()
    killed = {1: "memory", 3: "time"}.get(number, "")
    return {
        "sandbox_id": f"box-{user.group_id}-{number}", "variant": "bubblewrap", "node": "node-0",
        "pool": "sandboxes-0", "environment_key": f"{number:016x}",
        "trajectory_id": user.trajectory_id, "task_id": user.task_id, "domain": user.domain,
        "created_at": at(began - 0.5),
        "ready_at": user.created_at, "leased_at": at(began + 0.1),
        "ended_at": user.finished_at, "prewarmed": number != 2, "wait_s": 0.1, "execs": 3,
        "exec_s": 0.75, "peak_memory_mb": 48.0 + number, "killed_by": killed,
        "leaked": 2 if number == 2 else 0, "error": None,
    }  # fmt: skip


def admissions_table(steps: int) -> pa.Table:
    """Return the checks of the repair tasks, one of which was not admitted."""
    rows = []
    for step in range(1, steps + 2):
        good = step <= steps
        rows.append(
            {
                "task_id": f"repair/{step}", "domain": "repair", "task_digest": f"{step:064x}",
                "image_digest": "", "verifier_digest": "f" * 64, "gold": good, "noop": True,
                "cheat": True, "flaky": not good, "quality": 0.8, "seconds": 1.5, "admitted": good,
                "reason": None if good else "repetitions of the solution differ",
                "checked_at": at(0.0),
            }
        )  # fmt: skip
    return to_table("admissions", rows)


def step_events(step: int, rows: Sequence[Trajectory]) -> Iterator[tuple[datetime, Event]]:
    """Yield the events of a step: admissions, aborts, and the phases of its update."""
    served, formed = max(0, step - 2), formed_s(step)
    for group in dict.fromkeys((each.group_id, each.domain) for each in rows):
        detail = {"task_id": f"{group[1]}/{step}"}
        began = max(0.0, formed - 27.0)
        yield at(began), Event(EventKind.ADMIT, group[0], None, group[1], served, detail=detail)
    for each in rows:
        if each.outcome in (Outcome.STALE, Outcome.REDUNDANT):
            aborted = Event(EventKind.ABORT, each.trajectory_id, each.reason, each.domain, served)
            yield each.finished_at, aborted
    moment = formed
    for kind, seconds in (("suspend", 0.4), ("update", 0.9), ("resume", 0.2)):
        yield at(moment), Event(EventKind(kind), str(step - 1), policy_version=step - 1, step=step)
        moment += seconds
    if step % 2 == 0:
        yield at(step * STEP_S), Event(EventKind.CHECKPOINT, str(step), None, None, step, step)


def odd_events() -> Iterator[tuple[datetime, Event]]:
    """Yield an event of each kind that the steps do not have."""
    hostile = {"error": "\x1b[31m<script>alert(1)</script>\u202etxt"}
    yield at(0.0), Event(EventKind.RUN, "demo", detail={"pipeline": "demo"})
    yield at(0.0), Event(EventKind.FALLBACK, "generation-1", detail={"requested": "H800"})
    yield at(44.0), Event(EventKind.CRASH, "generation-0", Reason.WORKER_LOST, detail=hostile)
    yield at(45.0), Event(EventKind.STALL, "get_batch", detail={"seconds": 61.5})
    given = {EventKind.SUSPEND, EventKind.UPDATE, EventKind.RESUME, EventKind.ADMIT}
    given |= {EventKind.ABORT, EventKind.CHECKPOINT, EventKind.DROP, EventKind.EVICT}
    given |= {EventKind.RUN, EventKind.FALLBACK, EventKind.CRASH, EventKind.STALL}
    others = [kind for kind in EventKind if kind not in given]
    detail = {"error": "disk full", "what": "push", "seconds": 0.2}
    for number, kind in enumerate(others):
        yield at(50.0 + number), Event(kind, f"{kind}-0", None, "repair", 1, detail=detail)
