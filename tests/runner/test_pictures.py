"""A run whose environment shows images: trained, stored, replayed and forked with them."""

import json
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.pipeline.loading import LoadedPipeline, load_source
from rollart_flow.replay import replay_step, replay_trajectory
from rollart_flow.store import Run, open_run
from rollart_flow.store.layout import weights_uri
from rollart_flow.weights import stored_weights
from tests.cli.shell import rollart
from tests.models.vision import save_tiny_vision
from tests.runner.lakes import draws, lakes
from tests.runner.local import calling, run_with


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedPipeline:
    folder = tmp_path_factory.mktemp("sees")
    model = save_tiny_vision(folder / "model", max_context=96)
    policy = f"Policy.from_pretrained({str(model)!r}, max_context=96, engine='transformers')"
    return load_source(lakes(policy), folder / "sees.py")


@pytest.fixture(scope="module")
def run(loaded: LoadedPipeline, tmp_path_factory: pytest.TempPathFactory) -> Run:
    store = str(tmp_path_factory.mktemp("store"))
    return open_run(runner.run(loaded, store=store, executor="inline").uri)


def test_every_image_of_a_row_is_a_file_of_the_run_once(run: Run) -> None:
    rows = run.trajectories.collect()
    named = set(rows["images"].explode().drop_nulls())

    assert named
    assert {path.name for path in Path(run.uri, "images").iterdir()} == {
        f"{name}.png" for name in named
    }
    assert len(named) < rows["images"].list.len().sum()
    for row in rows.filter(pl.col("images").is_not_null()).iter_rows(named=True):
        shown = [
            part["image_url"]["url"]
            for message in json.loads(row["messages"])
            if message["role"] == "user"
            for part in message["content"]
        ]
        assert shown == [f"sha256:{name}" for name in row["images"]]
    assert run.image(min(named)).size == (16, 16)


def test_both_towers_are_trained_and_a_step_is_replayed_to_the_last_bit(run: Run) -> None:
    weights = stored_weights(weights_uri(run.uri))
    first, last = weights.read(0), weights.read(2)

    for name in ("visual.patch_embed.proj.weight", "model.embed_tokens.weight"):
        assert not first[name].equal(last[name]), name
    replayed = replay_step(run.uri, 2)
    assert replayed.equal, replayed.difference


def test_a_trajectory_with_images_is_replayed_and_shown(run: Run) -> None:
    trained = run.trajectories.join(run.batches, on="trajectory_id", how="semi").collect()
    name = trained["trajectory_id"][0]

    replayed = replay_trajectory(run.uri, name)

    assert replayed.equal, replayed.divergence
    shown = rollart("show", run.uri, "--trajectory", name)
    assert f"[image {trained['images'][0][0][:12]}]" in shown.out, shown.err


def test_a_fork_trains_the_parents_step_again_with_its_images(
    run: Run, loaded: LoadedPipeline, tmp_path: Path
) -> None:
    forked = runner.fork(run.uri, 1, loaded, store=str(tmp_path), executor="inline")

    assert forked.status == "finished"
    assert open_run(forked.uri).steps.collect()["step"].to_list() == [2]


def test_a_resumed_run_trains_the_rows_with_their_images(
    loaded: LoadedPipeline, tmp_path: Path
) -> None:
    def interrupt(step: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(
            loaded,
            store=str(tmp_path),
            name="sees",
            executor="inline",
            on_progress=calling(interrupt),
        )
    interrupted = open_run(tmp_path / "sees")
    assert interrupted.steps.collect().height < 2
    assert runner.resume(interrupted.uri, executor="inline").status == "finished"
    resumed = open_run(tmp_path / "sees")
    assert resumed.steps.sort("step").collect()["step"].to_list() == [1, 2]
    assert replay_step(resumed.uri, 2).equal


@pytest.mark.whole
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize(
    "train", ["", ", backend='fsdp2', ranks=2"], ids=["one process", "two ranks"]
)
def test_processes_of_ray_train_on_images(train: str, tmp_path: Path) -> None:
    made = run_with(lakes(train=train), tmp_path, name="sees")

    assert made.steps.collect().height == 2
    named = set(made.trajectories.collect()["images"].explode().drop_nulls())
    assert {path.stem for path in Path(made.uri, "images").iterdir()} == named
    replayed = replay_step(made.uri, 2)
    assert replayed.recomputed["loss"] == pytest.approx(replayed.recorded["loss"], abs=1e-5)


def test_rows_are_drawn_into_another_run_with_the_images_of_their_own(
    run: Run, loaded: LoadedPipeline, tmp_path: Path
) -> None:
    policy = next(line for line in loaded.source_text.splitlines() if line.startswith("policy = "))
    text = draws(run.uri, policy.removeprefix("policy = "))
    looked = runner.run(
        load_source(text, tmp_path / "looks.py"), store=str(tmp_path), executor="inline"
    )
    batch = open_run(looked.uri).batch(2)
    assert batch["images"].null_count == 0
    assert set(batch["source_run"].to_pylist()) == {run.uri}
    assert not Path(looked.uri, "images").exists(), "each image lies in its own run"
    assert replay_step(looked.uri, 2).equal
