"""Files of versions that a crash left behind: a resumed run removes or replaces them."""

from pathlib import Path

import pytest

from rollart_flow import runner
from rollart_flow.operators.recovery import recover
from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.store.layout import checkpoints_uri
from rollart_flow.trainers.checkpoint.retention import checkpoint_folder
from rollart_flow.weights import LocalWeightStore
from tests.runner.local import calling, run_with
from tests.runner.world import check_sound, source
from tests.weights.conformance import tensors_of

STEPS = 6


def interrupted(folder: Path) -> Run:
    """A run that was interrupted after its second step."""

    def interrupt(step: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_with(source(folder, steps=STEPS, every=STEPS), folder, interrupt, executor="inline")
    return open_run(folder / "coins")


def test_a_version_that_was_published_but_not_recorded_may_be_trained_to_other_weights(
    tmp_path: Path,
) -> None:
    run = interrupted(tmp_path)
    newest = recover(run).version
    assert newest + 2 < STEPS
    store = LocalWeightStore(Path(run.path) / "weights")
    store.remove_after(newest)
    store.publish(newest + 1, tensors_of(7))
    checkpoint = Path(checkpoint_folder(checkpoints_uri(run.uri), newest + 2))
    checkpoint.mkdir(parents=True)
    (checkpoint / "never recorded").touch()

    def look(step: int) -> None:
        assert step > newest
        assert not (checkpoint / "never recorded").exists()

    result = runner.resume(run.uri, executor="inline", on_progress=calling(look))
    assert result.status is RunStatus.FINISHED
    check_sound(open_run(run.uri), STEPS)


def test_a_version_that_a_power_failure_damaged_is_published_again(tmp_path: Path) -> None:
    run = interrupted(tmp_path)
    newest = recover(run).version
    folder = Path(run.path) / "weights" / f"v{newest:06d}"
    (folder / "model.safetensors").write_bytes(b"")

    def look(step: int) -> None:
        if step == newest + 1:
            assert LocalWeightStore(folder.parent).read(newest)

    result = runner.resume(run.uri, executor="inline", on_progress=calling(look))
    assert result.status is RunStatus.FINISHED
    check_sound(open_run(run.uri), STEPS)
