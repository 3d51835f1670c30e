"""A run that trains a LoRA adapter publishes it alone, and all that read whole weights merge it."""

from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

from rollart_flow import export, runner
from rollart_flow.errors import TrainerError, WeightsError
from rollart_flow.models.folder import load_folder
from rollart_flow.models.lora import is_adapter
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay import replay_step, replay_trajectory
from rollart_flow.runner import settings as runner_settings
from rollart_flow.runner.fork import prepare_fork
from rollart_flow.runner.retrain import bring_to, stored_pipeline, stored_trainer
from rollart_flow.runner.settings import adapter_base, engine_arguments, rank_settings
from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.store.layout import policy_uri, weights_uri
from rollart_flow.trainers.base import Trainer
from rollart_flow.weights import LocalWeightStore
from rollart_flow.weights.base import AdapterEntry
from rollart_flow.weights.fingerprint import fingerprint
from tests.conftest import SMALL_PIPELINE
from tests.copies import copied
from tests.runner.local import run_with

STEPS = 4
SENT = 'weights="nccl", steps=4,'
LORA = SMALL_PIPELINE.replace("steps=4", "steps=4, lora_rank=2")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of an adapter; read it only."""
    return run_with(LORA, tmp_path_factory.mktemp("adapted"), executor="inline")


def trainer_at(run: Run, version: int) -> Trainer:
    """A trainer of a run, brought to one of its versions to the last bit."""
    trainer = stored_trainer(run, stored_pipeline(run))
    assert all(again.difference is None for again in bring_to(run, trainer, version))
    return trainer


def entry_of(run: Run) -> AdapterEntry:
    """The adapter that every version after the first one consists of."""
    base = load_folder(policy_uri(run.uri))[1]
    return AdapterEntry(base=0, rank=2, alpha=4, base_checksum=fingerprint(base))


def fingerprints(run: Run) -> dict[int, str]:
    """Recorded fingerprints by step."""
    return dict(run.steps.select("step", "fingerprint").collect().iter_rows())


def test_versions_after_the_first_are_the_adapter_alone(adapted: Run) -> None:
    store = LocalWeightStore(weights_uri(adapted.uri))
    assert store.manifest(0).adapter is None
    for version in store.versions()[1:]:
        assert store.manifest(version).adapter == entry_of(adapted)
        assert is_adapter(store.read(version))
    rows = adapted.weights.sort("policy_version").collect()
    assert rows["base_version"].to_list() == [None, *[0] * STEPS]
    assert (
        rows["checksum"].to_list()[1:]
        == adapted.steps.sort("step").collect()["fingerprint"].to_list()
    )
    whole, alone = rows["size_bytes"][0], rows["size_bytes"][STEPS]
    assert alone < whole / 4
    assert rows["size_bytes"][1:].n_unique() == 1
    pipeline = stored_pipeline(adapted)
    assert engine_arguments(pipeline, adapted.uri, "local")["lora_rank"] == 2


def test_its_steps_and_tokens_are_replayed(adapted: Run) -> None:
    """Also under versions that are no longer stored, whose steps are trained again."""
    for step in (1, STEPS):
        assert replay_step(adapted.uri, step).equal
    for split in ("train", "evaluation"):
        rows = adapted.trajectories.filter(pl.col("split") == split).collect()
        for trajectory_id in rows["trajectory_id"].to_list()[:: max(1, rows.height // 4)]:
            replayed = replay_trajectory(adapted.uri, trajectory_id)
            assert replayed.equal, replayed.divergence


@pytest.mark.parametrize("without", [(), ("weights",)], ids=["weights", "checkpoint"])
def test_export_merges(adapted: Run, tmp_path: Path, without: tuple[str, ...]) -> None:
    run = copied(adapted, tmp_path / "copy", without=without)
    made = export(run, tmp_path / "model", version=STEPS)
    assert made.source == ("checkpoint" if without else "weights")
    found, wanted = (
        load_file(tmp_path / "model" / "model.safetensors"),
        trainer_at(adapted, STEPS).weights(),
    )
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-7, rtol=1e-6)


def test_a_policy_folder_with_other_weights_is_refused(adapted: Run, tmp_path: Path) -> None:
    run = copied(adapted, tmp_path / "copy")
    path = Path(policy_uri(run.uri)) / "model.safetensors"
    save_file({name: tensor + 1e-3 for name, tensor in load_file(path).items()}, path)
    with pytest.raises(WeightsError, match=r"trained over other weights than those in .*policy"):
        export(run, tmp_path / "model", version=STEPS)
    with pytest.raises(TrainerError, match="trained over other weights than the run's policy"):
        trainer_at(run, 2)


def test_an_interrupted_run_goes_on_to_the_last_bit(adapted: Run, tmp_path: Path) -> None:
    def interrupt(step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_with(LORA, tmp_path, interrupt, executor="inline")
    uri = str(tmp_path / "coins")
    assert runner.resume(uri, executor="inline").status is RunStatus.FINISHED
    resumed = open_run(uri)
    assert fingerprints(resumed).keys() == fingerprints(adapted).keys()
    assert all(replay_step(uri, step).equal for step in (3, 4))
    assert LocalWeightStore(weights_uri(uri)).manifest(STEPS).adapter == entry_of(adapted)


@pytest.mark.parametrize("step", [0, 2, 3])
def test_a_fork_goes_on_with_the_adapter_and_its_optimizer(
    adapted: Run, tmp_path: Path, step: int
) -> None:
    loaded = load_source(LORA, tmp_path / "small.py")
    fork = Run(prepare_fork(adapted.uri, step, loaded, store=str(tmp_path), name="fork"))
    assert adapter_base(fork) == 0
    trainer = trainer_at(fork, step)
    result = trainer.train_step(step + 1, adapted.batch(step + 1))
    assert result.fingerprint == fingerprints(adapted)[step + 1]
    again = Run(prepare_fork(fork.uri, step, loaded, store=str(tmp_path), name="again"))
    assert trainer_at(again, step).weights().keys() == trainer.weights().keys()
    assert adapter_base(again) == 0
    # The policy folder of the fork is the base of its start, not the start itself.
    export(fork, tmp_path / "model", version=step)
    found, wanted = load_file(tmp_path / "model" / "model.safetensors"), trainer_at(adapted, step)
    for name, tensor in wanted.weights().items():
        torch.testing.assert_close(found[name], tensor, atol=1e-7, rtol=1e-6)


def test_a_fork_runs_and_is_replayed(adapted: Run, tmp_path: Path) -> None:
    loaded = load_source(LORA.replace("grpo()", "grpo(kl=0.1)"), tmp_path / "small.py")
    made = runner.fork(adapted.uri, 3, loaded, store=str(tmp_path), executor="inline")
    fork = open_run(made.uri)
    store = LocalWeightStore(weights_uri(fork.uri))
    assert [store.manifest(version).adapter for version in (3, 4)] == [entry_of(adapted)] * 2
    assert replay_step(fork.uri, 4).equal
    trained = fork.batches.collect()["trajectory_id"].to_list()
    assert replay_trajectory(fork.uri, trained[0]).equal
    assert trainer_at(fork, 4).snapshot().reference is not None


@pytest.mark.parametrize(
    ("parent", "child"), [("2", ""), ("", "lora_rank=2, "), ("2", "lora_rank=3, ")]
)
@pytest.mark.parametrize("algorithm", ["grpo()", "grpo(kl=0.1, reference=1)"])
def test_a_fork_that_trains_something_else_starts_from_the_same_weights(
    adapted: Run, finished_run: Run, tmp_path: Path, parent: str, child: str, algorithm: str
) -> None:
    run = adapted if parent else finished_run
    text = SMALL_PIPELINE.replace("steps=4", f"{child}steps=4").replace("grpo()", algorithm)
    loaded = load_source(text, tmp_path / "small.py")
    fork = Run(prepare_fork(run.uri, 2, loaded, store=str(tmp_path), name="fork"))
    trainer, wanted = trainer_at(fork, 2), trainer_at(run, 2).weights()
    start = trainer.weights()
    assert start.keys() == wanted.keys()
    assert all(torch.equal(start[name], tensor) for name, tensor in wanted.items())
    _, policy = load_folder(policy_uri(fork.uri))
    assert all(torch.equal(policy[name], tensor) for name, tensor in wanted.items())
    trainer.train_step(3, run.batch(3))
    assert (trainer.adapter is not None) == bool(child)
    trainer.save(tmp_path / "checkpoint")
    trainer_at(fork, 2).load(tmp_path / "checkpoint")


def test_a_run_that_published_merged_weights_is_opened_replayed_resumed_and_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run of an earlier version did, which an earlier version was interrupted in."""

    def interrupt(step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as earlier:
        earlier.setattr(runner_settings, "adapter_base", lambda run: None)
        with pytest.raises(KeyboardInterrupt):
            run_with(LORA, tmp_path, interrupt, executor="inline")
    uri = str(tmp_path / "coins")
    run = open_run(uri)
    assert adapter_base(run) is None
    assert rank_settings(stored_pipeline(run), uri).adapter_base is None
    assert engine_arguments(stored_pipeline(run), uri, "local")["lora_rank"] == 0
    assert replay_step(uri, 2).equal
    loaded = load_source(LORA, tmp_path / "small.py")
    fork = Run(prepare_fork(uri, 2, loaded, store=str(tmp_path), name="fork"))
    start, wanted = trainer_at(fork, 2).weights(), trainer_at(run, 2).weights()
    assert all(torch.equal(start[name], tensor) for name, tensor in wanted.items())
    assert adapter_base(fork) == 2
    assert runner.resume(uri, executor="inline").status is RunStatus.FINISHED
    rows = open_run(uri).weights.collect()
    assert rows["base_version"].null_count() == rows.height == STEPS + 1
    assert rows["size_bytes"].n_unique() == 1
    assert replay_step(uri, STEPS).equal
    export(open_run(uri), tmp_path / "model", version=STEPS)


def test_weights_that_the_trainers_gpu_sends_are_merged(tmp_path: Path) -> None:
    served = LORA.replace(
        "Policy.tiny(hidden=32)", 'Policy.tiny(hidden=32, heads=2, engine="vllm")'
    )
    placed = 'max_turns=3, hw_affinity={"default": "H20"})\nbatches'
    sent = served.replace("max_turns=3)\nbatches", placed).replace("steps=4,", SENT)
    assert rank_settings(load_source(served, tmp_path / "served.py").pipeline).adapter_base == 0
    assert rank_settings(load_source(sent, tmp_path / "sent.py").pipeline).adapter_base is None
