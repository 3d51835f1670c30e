"""A run of a model that this library does not implement: learned, replayed, exported."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from rollart_flow import export, runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay.step import replay_step
from rollart_flow.store import RunStatus, open_run
from tests.models.hf.tiny import write_model

SOURCE = """
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake

policy = Policy.from_pretrained({folder!r}, engine="transformers", max_context=90)
attempts = rollout(tasks(FrozenLake(size=4), group_size=4), policy, max_turns=2)
batches = buffer(reward(attempts), batch_size=8)
pipeline = Pipeline("llama", train(batches, policy, grpo(), steps=2{more}))
"""


@pytest.mark.parametrize("more", ["", ", lora_rank=4"], ids=["all weights", "adapter"])
def test_a_llama_learns_is_replayed_and_exported(more: str, tmp_path: Path) -> None:
    quiet: Any = transformers_logging.disable_progress_bar
    quiet()
    write_model("llama", tmp_path / "model")
    text = SOURCE.format(folder=str(tmp_path / "model"), more=more)
    pipeline = load_source(text, tmp_path / "llama.py")
    made = runner.run(pipeline, store=str(tmp_path / "runs"), name="a", executor="inline")
    run = open_run(made.uri)
    assert run.info.status is RunStatus.FINISHED
    assert replay_step(run.uri, 2).equal
    export(run, tmp_path / "exported", version=2)
    make: Any = AutoModelForCausalLM
    assert type(make.from_pretrained(tmp_path / "exported")).__name__ == "LlamaForCausalLM"
