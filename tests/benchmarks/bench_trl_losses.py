"""Losses of stored trajectories beside TRL's own functions, on the same logprobs.

TRL's trainers compute their losses of a model that has the given logprobs; ours are those of the
recipes. Both give a value and a gradient by each logprob, and the row has the largest difference of
either, relative to the largest value. TRL's IPO divides log-likelihoods by their numbers of tokens,
ours adds them up as the paper does: they are compared on rows of one token.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from rollart_flow.algorithms import Algorithm, dpo, ipo, kto, sft
from rollart_flow.algorithms.base import Tokens
from tests.benchmarks.bench_trl import TRL, call, trl_python
from tests.benchmarks.records import Record, record
from tests.trainers.preferences import LABELS, PAIRS, preference_batch, preference_rows

SIDE = Path(__file__).with_name("trl_losses_side.py")
BETA, DESIRABLE, UNDESIRABLE = 0.3, 1.2, 0.7
OURS = {
    "dpo": dpo(beta=BETA),
    "ipo": ipo(beta=BETA),
    "kto": kto(beta=BETA, desirable=DESIRABLE, undesirable=UNDESIRABLE),
    "kto at zero": kto(
        beta=BETA, desirable=DESIRABLE, undesirable=UNDESIRABLE, reference_point="zero"
    ),
}
MOST = 1e-5
"""Largest relative difference; the columns of a batch are float32."""
_COLUMNS = ("old", "reference", "mismatched_old", "mismatched_reference")
Values = Mapping[str, list[np.ndarray[Any, Any]]]


@dataclass(frozen=True, slots=True)
class Found:
    """A loss, and its gradient by each logprob, row by row."""

    loss: float
    gradient: np.ndarray[Any, Any]


def run() -> Iterator[Record]:
    """All records; takes some seconds once TRL is installed."""
    rows = preference_rows(5)
    random, scales = np.random.default_rng(1), (0.1, 1.0, 3.0, 0.5, 2.0, 0.2, 1.5, 0.8)
    values: Values = {
        name: [
            (random.normal(size=len(row.actions)) * scale - 1).astype(np.float32)
            for row, scale in zip(rows, scales, strict=True)
        ]
        for name in _COLUMNS
    }
    theirs = _theirs(values)
    for name, algorithm in (("sft", sft()), *OURS.items()):
        ours = _sft(values) if name == "sft" else _of_preferences(algorithm, values)
        peer = f"loss {ours.loss:.7f}, TRL {TRL} {theirs[name].loss:.7f}"
        if name == "ipo":
            peer += f", and {theirs['ipo by tokens'].loss:.7f} with means over tokens, its default"
        yield record(
            f"trl losses: {name}, largest relative difference of loss and gradient",
            _difference(ours, theirs[name]) / 1e-6,
            "1e-6",
            at_most=MOST / 1e-6,
            peer=peer,
        )


def _order() -> list[int]:
    """Rows in TRL's order: the preferred, then the rejected, by pair."""
    return sorted(range(len(LABELS)), key=lambda at: (not LABELS[at], PAIRS[at]))


def _theirs(values: Values) -> dict[str, Found]:
    lists = {name: [values[name][at].tolist() for at in _order()] for name in _COLUMNS}
    job = {
        "logprobs": lists["old"],
        "reference": lists["reference"],
        "mismatched": [sum(each) for each in lists["mismatched_old"]],
        "mismatched_reference": [sum(each) for each in lists["mismatched_reference"]],
        "beta": BETA,
        "desirable": DESIRABLE,
        "undesirable": UNDESIRABLE,
    }
    with TemporaryDirectory() as folder:
        place = Path(folder, "job.json")
        place.write_text(json.dumps(job))
        told = json.loads(call([str(trl_python()), str(SIDE), str(place)]).splitlines()[-1])
    return {
        name: Found(each["loss"], np.concatenate(each["gradient"])) for name, each in told.items()
    }


def _of_preferences(algorithm: Algorithm, values: Values) -> Found:
    """Our loss, whose advantages are its slopes at the weights that the step starts from."""
    batch = preference_batch(preference_rows(5))
    for name in _COLUMNS:
        batch = batch.append_column(
            f"{name}_logprobs", pa.array(values[name], pa.list_(pa.float32()))
        )
    found = algorithm.advantages(batch)
    counts = [len(each) for each in values["old"]]
    start = np.concatenate(found.columns["start_loss"]) * counts
    slopes = [-np.broadcast_to(each, n) / len(counts)
              for each, n in zip(found.values, counts, strict=True)]  # fmt: skip
    if algorithm.name == "ipo":  # rows of one token
        slopes = [each[:1] for each in slopes]
    return Found(float(start.mean()), np.concatenate([slopes[at] for at in _order()]))


def _sft(values: Values) -> Found:
    flat = np.concatenate([values["old"][at] for at in _order()]).astype(np.float64)
    logprobs = torch.tensor(flat, requires_grad=True)
    tokens = Tokens(logprobs, torch.full_like(logprobs, torch.nan), torch.ones_like(logprobs))
    loss = sft().token_loss(tokens).loss.mean()
    (slopes,) = torch.autograd.grad(loss, logprobs)
    return Found(loss.item(), slopes.numpy())


def _difference(ours: Found, theirs: Found) -> float:
    of_loss = abs(ours.loss - theirs.loss) / abs(theirs.loss)
    distance = np.abs(ours.gradient - theirs.gradient).max()
    return float(max(of_loss, distance / np.abs(theirs.gradient).max()))
