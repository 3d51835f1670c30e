"""TRL's side of `bench_trl_losses`: its own losses of given logprobs, run in a venv that has TRL.

Usage: python trl_losses_side.py JOB, where JOB is a JSON file with the fields of `Job`. The output
is a JSON object: for each loss its value, and its gradient by each logprob.
"""

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from trl import DPOTrainer, KTOTrainer, SFTTrainer

Lists = list[list[float]]


@dataclass(frozen=True)
class Job:
    """Rows of which the first half is preferred, each to that at its place in the second half."""

    logprobs: Lists
    """Of the action tokens of each row."""
    reference: Lists
    """The same, of the reference policy."""
    mismatched: list[float]
    """Sum of the logprobs of each row with the answer of another one."""
    mismatched_reference: list[float]
    beta: float
    desirable: float
    undesirable: float


def main(job: Job) -> dict[str, Any]:
    """Return {loss: {loss, gradient}}."""
    summed = Job(**{**vars(job), "logprobs": [[sum(each)] for each in job.logprobs],
                    "reference": [[sum(each)] for each in job.reference]})  # fmt: skip
    return {
        "sft": of_sft(job),
        "dpo": of_dpo(job, "sigmoid"),
        "ipo": of_dpo(summed, "ipo"),
        "ipo by tokens": of_dpo(job, "ipo"),
        "kto": of_kto(job, "kto"),
        "kto at zero": of_kto(job, "apo_zero_unpaired"),
    }


class Given:
    """A model that has the given logprobs, and what a trainer asks of one for its figures."""

    def __init__(self, job: Job) -> None:
        rows = [torch.tensor(each, dtype=torch.float64) for each in job.logprobs]
        self.counts = [len(each) for each in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        self.logprobs = pad(rows, batch_first=True).requires_grad_()
        self.mask = pad([torch.ones(n, dtype=torch.int64) for n in self.counts], batch_first=True)
        self.completion_mask = torch.nn.functional.pad(self.mask, (1, 0))  # one token of a prompt
        self.inputs = {
            "input_ids": torch.zeros_like(self.completion_mask),
            "attention_mask": torch.ones_like(self.completion_mask),
        }

    def __call__(self, **_: Any) -> SimpleNamespace:
        none = torch.zeros_like(self.logprobs)
        return SimpleNamespace(
            log_probs=self.logprobs, entropy=none, mean_logits=none, label_mask=self.mask.bool(),
            is_top1=torch.zeros_like(self.mask, dtype=torch.bool), aux_loss=None,
        )  # fmt: skip

    def told(self, loss: torch.Tensor) -> dict[str, Any]:
        (slopes,) = torch.autograd.grad(loss, self.logprobs)
        rows = [row[:n].tolist() for row, n in zip(slopes, self.counts, strict=True)]
        return {"loss": loss.item(), "gradient": rows}


def settings(**more: Any) -> dict[str, Any]:
    """Attributes of a trainer that has computed nothing yet; what a loss does not need is off."""
    return {
        "accelerator": Accelerator(cpu=True), "model": SimpleNamespace(training=False),
        "aux_loss_enabled": False, "precompute_ref_logps": True, "ref_model": None,
        "_metrics": defaultdict(lambda: defaultdict(list)), "_total_train_tokens": 0,
        "compute_loss_func": None, "label_smoother": None, **more,
    }  # fmt: skip


def of_sft(job: Job) -> dict[str, Any]:
    given = Given(job)
    args = SimpleNamespace(loss_type="nll", average_tokens_across_devices=False)
    trainer = bare(SFTTrainer, args=args)
    labels = given.inputs["input_ids"].masked_fill(given.completion_mask == 0, -100)
    return given.told(trainer.compute_loss(given, {**given.inputs, "labels": labels}))


def of_dpo(job: Job, loss: str) -> dict[str, Any]:
    given, half = Given(job), len(job.logprobs) // 2
    reference = doubles([sum(each) for each in job.reference])
    trainer = bare(
        DPOTrainer, beta=job.beta, loss_types=[loss], loss_weights=[1.0], ld_alpha=None,
        f_divergence_type="reverse_kl", use_weighting=False, label_smoothing=0.0,
    )  # fmt: skip
    inputs = {
        **given.inputs, "completion_mask": given.completion_mask,
        "ref_chosen_logps": reference[:half], "ref_rejected_logps": reference[half:],
    }  # fmt: skip
    return given.told(trainer._compute_loss(given, inputs, return_outputs=False))


def of_kto(job: Job, loss: str) -> dict[str, Any]:
    given, count = Given(job), len(job.logprobs)
    trainer = bare(
        KTOTrainer, beta=job.beta, loss_type=loss, calculate_KL=loss == "kto",
        desirable_weight=job.desirable, undesirable_weight=job.undesirable,
        _compute_kl_logps=lambda *_: doubles(job.mismatched),
    )  # fmt: skip
    inputs = {
        **given.inputs, "completion_mask": given.completion_mask,
        "label": torch.tensor([at < count // 2 for at in range(count)]),
        "ref_logps": doubles([sum(each) for each in job.reference]),
        "ref_KL_logps": doubles(job.mismatched_reference),
    }  # fmt: skip
    return given.told(trainer._compute_loss(given, inputs, return_outputs=False))


def doubles(values: list[float]) -> torch.Tensor:
    """Return float64 values."""
    return torch.tensor(values, dtype=torch.float64)


def bare(kind: Any, **more: Any) -> Any:
    """Return a trainer of TRL that was not set up, with these attributes."""
    trainer = object.__new__(kind)
    trainer.__dict__.update(settings(**more))
    return trainer


if __name__ == "__main__":
    print(json.dumps(main(Job(**json.loads(Path(sys.argv[1]).read_text())))))
