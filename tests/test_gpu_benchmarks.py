"""The benchmarks for GPUs run, on a tiny model and a CPU, and say so where there is no GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


def ran(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"tests.benchmarks.gpu.{name}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize("name", ["decode", "training"])
def test_each_reports_what_it_measured(name: str) -> None:
    answer = ran(name, "--tiny", "--device", "cpu", "--peak-tflops", "1")
    assert answer.returncode == 0, answer.stderr
    records = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
    assert len(records) >= 4
    assert all(record["value"] >= 0 and record["peer"] for record in records)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_one_line_says_so() -> None:
    answer = ran("decode")
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: policy.device='cuda': torch")
