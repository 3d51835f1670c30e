"""The benchmarks for GPUs run, on a tiny model and a CPU, and say so where there is no GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks.gpu import decode
from tests.benchmarks.gpu.shapes import main

ROOT = Path(__file__).parents[1]
TINY = ("--tiny", "--device", "cpu", "--peak-tflops", "1")


def measured(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of the benchmark of decoding in this process."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["decode", *arguments])
    return main(decode.measure, decode.__doc__)


def check_records(said: str) -> None:
    records = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert len(records) >= 4
    assert all(record["value"] >= 0 and record["peer"] for record in records)


def test_decoding_reports_what_it_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measured(monkeypatch, *TINY) == 0
    check_records(capsys.readouterr().out)


def test_training_reports_what_it_measured() -> None:
    """In a process of its own, in which trainers of ranks form their groups."""
    command = [sys.executable, "-m", "tests.benchmarks.gpu.training", *TINY]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert answer.returncode == 0, answer.stderr
    check_records(answer.stdout)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measured(monkeypatch) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: policy.device='cuda': torch")
