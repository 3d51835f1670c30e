"""The work of training steps on CPUs, as the trainer's own packing counts it.

Batches of one run have about as many tokens each, so that their times say little about the time of
a smaller or larger batch. What the trainer computes is known, however: each micro-batch has a fixed
cost, prefixes that attempts share are computed once, and attention is padded. The invariant: work
is counted by `trainers.batch.passes` over rows that the run trained on, cut as its trainer cuts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from rollart_flow.simulation.measured import TokenCurve
from rollart_flow.simulation.report.report import WARMUP
from rollart_flow.store.snapshot import Snapshot
from rollart_flow.trainers.batch.passes import packed_cost, packs
from rollart_flow.trainers.batch.ragged import Array

_SAMPLED_STEPS = 8
"""Steps whose rows stand for those of the run."""
_SIZES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Sizes of sampled batches, as multiples of the run's own."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a trainer cuts batches."""

    minibatches: int
    epochs: int
    micro_batch_tokens: int


@dataclass(frozen=True, slots=True)
class TrainedRows:
    """Rows that a run trained on, in the order of its batches."""

    tokens: Array
    """Tokens of all rows, one row after another."""
    starts: Array
    """Place in `tokens` of the first token of each row [B]."""
    lengths: Array
    """Tokens of each row [B]."""
    used: Array
    """Tokens of each row before its last action token, which passes compute [B]."""

    def work(self, rows: Array, cut: Cut) -> int:
        """Return the work of a step over some rows, which are shuffled already."""
        total = 0
        for minibatch in np.array_split(rows, cut.minibatches):
            for part in packs(self.used[minibatch], cut.micro_batch_tokens):
                own = minibatch[part]
                total += packed_cost(self.tokens, self.starts[own], self.used[own])
        return cut.epochs * total


def read_work(snapshot: Snapshot, train: Mapping[str, Any]) -> TokenCurve | None:
    """Return the work of a run's steps; None if its trainer packed no rows of it on a CPU.

    Args: `train` are the settings of the pipeline's training node.
    """
    steps = snapshot.steps.select("step", "kernels").sort("step").collect()
    kernels = json.loads(steps["kernels"][-1])
    if kernels.get("device") != "cpu" or not kernels.get("packed"):
        return None
    cut = Cut(train["minibatches"], train["epochs"], train["micro_batch_tokens"])
    late = steps["step"][min(WARMUP, len(steps) - 1) :]
    places = np.linspace(0, len(late) - 1, min(_SAMPLED_STEPS, len(late))).astype(int)
    rows = read_rows(snapshot, late[places].to_list())
    return work_curve(rows, cut, len(rows.lengths) // len(places)) if len(rows.lengths) else None


def work_curve(rows: TrainedRows, cut: Cut, size: int) -> TokenCurve:
    """Return the mean work of batches of a quarter to four times `size` rows, by their tokens."""
    shuffle, count = np.random.default_rng(0), len(rows.lengths)
    points = {}
    for factor in _SIZES:
        own = min(count, max(cut.minibatches, round(factor * size)))
        samples = []
        for first in range(0, count - own + 1, max(1, size)):
            chosen = first + shuffle.permutation(own)
            samples.append((int(rows.lengths[chosen].sum()), rows.work(chosen, cut)))
        tokens, work = np.mean(samples, axis=0).tolist()
        points[tokens] = work
    return TokenCurve(tuple(sorted(points.items())))


def read_rows(snapshot: Snapshot, steps: list[int]) -> TrainedRows:
    """Read the rows that some steps trained on, but for those that were drawn from other runs."""
    batches = snapshot.batches.filter(pl.col("step").is_in(steps))
    names = batches.select("step", "position", "trajectory_id").collect()
    attempts = snapshot.trajectories.select("trajectory_id", "token_ids", "action_mask")
    found = attempts.filter(pl.col("trajectory_id").is_in(names["trajectory_id"].to_list()))
    acted = found.filter(pl.col("action_mask").list.any()).collect()
    rows = names.join(acted, on="trajectory_id").sort("step", "position")
    lengths = rows["token_ids"].list.len().cast(pl.Int64).to_numpy()
    tokens = rows["token_ids"].to_arrow().flatten().to_numpy(zero_copy_only=False)
    masks = rows["action_mask"].to_list()
    used = np.array([len(mask) - 1 - mask[::-1].index(True) for mask in masks], dtype=np.int64)
    return TrainedRows(tokens.astype(np.int64), np.cumsum(lengths) - lengths, lengths, used)
