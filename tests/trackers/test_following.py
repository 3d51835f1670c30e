"""A tracker that breaks delays neither the run nor another tracker, and catches up later."""

import os
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.store import open_run
from rollart_flow.telemetry import Progress, ProgressKind
from rollart_flow.trackers.base import error_without_keys
from rollart_flow.trackers.following import Tracked, catch_up
from rollart_flow.trackers.registry import named_tracker, named_trackers
from rollart_flow.trackers.tensorboard import TensorBoardTracker
from rollart_flow.types import EventKind
from tests.conftest import SMALL_PIPELINE
from tests.runs import small_run

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "tests" / "plugins"
KEY = "key-of-the-tiny-tracker"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package with the tiny tracker, and the file in which that tracker writes."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(PLUGINS))))
    monkeypatch.setenv("ROLLART_TINY_USED", str(tmp_path / "used"))
    monkeypatch.setenv("TINY_API_KEY", KEY)
    return tmp_path / "lines"


def test_a_tracker_gets_steps_and_evaluations_in_commit_order_and_goes_on(tiny: Path) -> None:
    run = small_run(tiny.parent)
    trackers = named_trackers([f"tiny(file={str(tiny)!r})"])
    assert catch_up(run.as_of(step=2), trackers) == [Tracked("tiny", 3)]
    assert catch_up(run, trackers) == [Tracked("tiny", 7)]
    assert tiny.read_text().split("\n") == [
        "evaluation 0", "step 1", "step 2", "evaluation 2", "step 3", "step 4", "evaluation 4", "",
    ]  # fmt: skip
    assert catch_up(run, trackers) == [Tracked("tiny", 7)]


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        ("raise", "ConnectionError: refused with key ***"),
        ("exit", "its process ended before it was done"),
        ("hang", "it was not done 0.2 s after the end of the run"),
    ],
)
def test_a_run_goes_on_without_a_tracker_that_breaks(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, breaks: str, said: str
) -> None:
    monkeypatch.setattr("rollart_flow.runner.observer.END_S", 0.2 if breaks == "hang" else 60.0)
    store, notes = tiny.parent, list[str]()

    def heard(progress: Progress) -> None:
        if progress.kind is ProgressKind.NOTE and "tracker" in progress.text:
            notes.append(progress.text)

    changes = {"trackers": f"tiny(breaks={breaks!r})", "steps": "2", "every": "2"}
    loaded = load_source(SMALL_PIPELINE, store / "world.py", changes)
    result = runner.run(
        loaded, store=str(store), name="world", executor="inline", on_progress=heard
    )
    run = open_run(result.uri)
    assert run.status == "finished"
    events = run.events.filter(pl.col("kind") == EventKind.TRACKER).collect()
    assert events["subject"].to_list() == ["tiny"]
    assert said in events["detail"].item()
    (note,) = notes
    assert said in note
    assert "`rollart track world --track tiny` writes the rest" in note
    assert KEY not in "".join(run.events.collect()["detail"]) + note
    whole = catch_up(run, named_trackers([f"tiny(file={str(tiny)!r})"]))
    assert [(each.tracker, each.error) for each in whole] == [("tiny", None)]
    assert whole[0].records == run.steps.collect().height + 2


def test_another_tracker_is_not_delayed(tiny: Path) -> None:
    run = small_run(tiny.parent)
    broken, whole = named_tracker("tiny(breaks='raise')"), TensorBoardTracker()
    first, second = catch_up(run, [broken, whole])
    assert (first.records, second) == (1, Tracked("tensorboard", 7))


def test_trackers_are_named_by_texts_that_are_checked(tiny: Path) -> None:
    text = "wandb(samples=2, project='lakes')"
    assert str(named_tracker(text)) == text
    assert named_trackers(["mlflow", "tiny"])[0].samples == 4
    for wrong, said in (
        ("wand", "did you mean wandb?"),
        ("wandb(samples=-1)", "samples should be greater than or equal to 0, got -1"),
        ("wandb(color=1)", "unexpected keyword argument 'color'"),
    ):
        with pytest.raises(SettingsError, match=said.replace("?", r"\?")):
            named_tracker(wrong)
    with pytest.raises(SettingsError, match="tracker tiny is given twice"):
        named_trackers(["tiny", "tiny(samples=1)"])


def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(self: TensorBoardTracker, run: object) -> None:
        raise ModuleNotFoundError("no tensorboard", name="tensorboard")

    monkeypatch.setattr(TensorBoardTracker, "open", missing)
    (done,) = catch_up(small_run(tmp_path), [TensorBoardTracker()])
    assert done.error == (
        "tracker tensorboard needs tensorboard; pip install 'rollart-flow[tensorboard]'"
    )
    with pytest.raises(MissingExtraError):
        raise MissingExtraError(done.error)


def test_errors_lose_keys_and_users_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "very-secret")
    error = ConnectionError("very-secret at https://user:word@host/path\nsecond line")
    assert error_without_keys(error) == "ConnectionError: *** at https://host/path second line"
