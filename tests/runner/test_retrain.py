"""The trainer of a stored run at any of its versions."""

import json
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.errors import SettingsError, StoreError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner.retrain import bring_to, check_version, stored_pipeline, stored_trainer
from rollart_flow.store import Parent, Run, open_run
from rollart_flow.store.layout import checkpoints_uri, weights_uri
from rollart_flow.types import EventKind
from rollart_flow.weights import fingerprint
from rollart_flow.weights.folder_store import names_in
from tests.conftest import FINISHED_STEPS, SMALL_PIPELINE
from tests.copies import Rows, changing, copied, nothing


def test_each_version_comes_out_as_it_was_published(finished_run: Run) -> None:
    published = finished_run.weights.select("policy_version", "checksum").collect()
    trained: dict[int, list[int]] = {}
    for version, checksum in published.iter_rows():
        trainer = stored_trainer(finished_run, stored_pipeline(finished_run))
        trained[version] = [again.step for again in bring_to(finished_run, trainer, version)]
        assert trainer.version == version
        assert fingerprint(trainer.weights()) == checksum
    assert trained == {0: [], 1: [1], 2: [], 3: [3], 4: []}, "there are checkpoints of 2 and 4"


def test_a_version_whose_checkpoint_was_removed_is_trained_again_from_the_start(
    tmp_path: Path,
) -> None:
    text = SMALL_PIPELINE.replace("checkpoint_every=2", "checkpoint_every=1, keep_checkpoints=1")
    loaded = load_source(text, tmp_path / "small.py")
    runner.run(loaded, store=str(tmp_path), name="kept", executor="inline")
    run = open_run(tmp_path / "kept")
    assert names_in(checkpoints_uri(run.uri)) == ["000004"]
    assert "v000001" not in names_in(weights_uri(run.uri))
    trainer = stored_trainer(run, stored_pipeline(run))
    again = list(bring_to(run, trainer, 2))
    assert [(each.step, each.same_weights) for each in again] == [(1, True), (2, True)]


def test_weights_that_a_resumed_run_went_on_from_are_the_same(
    finished_run: Run, tmp_path: Path
) -> None:
    fingerprints = finished_run.steps.filter(pl.col("step") == 1).collect()["fingerprint"].to_list()
    detail = json.dumps({"recorded": "other", "recomputed": fingerprints[0]})

    def accept(rows: Rows) -> Rows:
        event = dict.fromkeys(rows[0]) | {
            "at": datetime(2025, 1, 2, tzinfo=UTC),
            "kind": EventKind.DIVERGENCE,
            "subject": "1",
            "step": 1,
            "detail": detail,
        }
        return [*rows, event]

    other = {"steps": changing("step", 1, fingerprint="other")}
    for name, changes, same in (("no", other, False), ("yes", {**other, "events": accept}, True)):
        copy = copied(finished_run, tmp_path / name, changes)
        trainer = stored_trainer(copy, stored_pipeline(copy))
        (again,) = bring_to(copy, trainer, 1)
        assert again.same_weights is same
        assert str(again.difference).startswith("fingerprint 'other' was recorded, ")


def test_a_lost_batch_is_named(finished_run: Run, tmp_path: Path) -> None:
    copy = copied(finished_run, tmp_path / "copy", {"batches": nothing})
    trainer = stored_trainer(copy, stored_pipeline(copy))
    with pytest.raises(StoreError, match="no batch of step 3"):
        list(bring_to(copy, trainer, 3))


def test_a_version_that_the_run_does_not_have_is_refused(finished_run: Run, tmp_path: Path) -> None:
    check_version(finished_run, 0)
    check_version(finished_run, FINISHED_STEPS)
    with pytest.raises(SettingsError, match="run small has no version 5; it has 0 to 4"):
        check_version(finished_run, 5)
    forked = copied(finished_run, tmp_path / "copy", parent=Parent(finished_run.uri, 2))
    with pytest.raises(SettingsError, match="run copy has no version 1; it has 2 to 4"):
        check_version(forked, 1)
