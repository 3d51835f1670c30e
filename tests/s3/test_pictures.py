"""A run in S3 whose environment shows images: each lies in the bucket once and is read from it."""

from pathlib import Path

from rollart_flow import export, runner
from rollart_flow.models.folder import load_folder
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay import replay_step, replay_trajectory
from rollart_flow.store import open_run
from rollart_flow.store.layout import images_uri
from rollart_flow.store.s3.blobs import S3Blobs
from tests.runner.lakes import draws, lakes


def test_images_in_a_bucket_are_trained_replayed_and_read_by_forks_and_other_runs(
    remote: str, tmp_path: Path
) -> None:
    loaded = load_source(lakes(), tmp_path / "sees.py")

    run = open_run(runner.run(loaded, store=remote, name="sees", executor="inline").uri)

    trained = run.trajectories.join(run.batches, on="trajectory_id", how="semi").collect()
    named = set(run.trajectories.collect()["images"].explode().drop_nulls())
    assert named
    assert set(S3Blobs(images_uri(run.uri)).names()) == {f"{name}.png" for name in named}
    assert run.image(min(named)).size == (16, 16)
    assert replay_step(run.uri, 2).equal
    assert replay_trajectory(run.uri, trained["trajectory_id"][0]).equal
    forked = runner.fork(run.uri, 1, loaded, store=str(tmp_path), executor="inline")
    assert open_run(forked.uri).steps.collect()["step"].to_list() == [2]
    export(run, tmp_path / "exported", version=2)
    assert load_folder(tmp_path / "exported")[0].pictures() is not None
    assert "AutoModelForImageTextToText" in (tmp_path / "exported" / "README.md").read_text()
    drawing = load_source(draws(run.uri), tmp_path / "looks.py", {"steps": "1"})
    drawn = open_run(runner.run(drawing, store=str(tmp_path), executor="inline").uri)
    assert set(drawn.batch(1)["source_run"].to_pylist()) == {run.uri}
    assert drawn.batch(1)["images"].null_count == 0
    assert replay_step(drawn.uri, 1).equal
