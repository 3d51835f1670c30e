"""What `run` and `resume` leave behind, and what they refuse."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow import runner
from rollart_flow.errors import RollartError, SettingsError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner import session
from rollart_flow.runner.runs import _claimed
from rollart_flow.runner.setup import _recording_failure
from rollart_flow.store import Owner, RunStatus, open_run, read_info
from rollart_flow.store.info import package_versions, write_info
from rollart_flow.store.lease_file import Tenure
from rollart_flow.telemetry import Progress
from tests.runner.world import source
from tests.runs import info, new_writer


def run_inline(text: str, store: Path) -> None:
    loaded = load_source(text, store / "pipeline.py")
    runner.run(loaded, store=str(store), name="here", executor="inline")


def test_a_run_that_is_refused_while_it_is_made_leaves_neither_name_nor_folder(
    tmp_path: Path,
) -> None:
    text = source(tmp_path).replace("Policy.tiny(", 'Policy(path="/nowhere") or Policy.tiny(')
    with pytest.raises(RollartError, match="/nowhere"):
        run_inline(text, tmp_path)
    assert not (tmp_path / "here").exists()


def test_a_run_that_is_refused_when_its_processes_start_leaves_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SettingsError("train.device: there is no such device")

    monkeypatch.setattr(session, "start_processes", refuse)
    with pytest.raises(RollartError, match="no such device"):
        run_inline(source(tmp_path), tmp_path)
    assert not (tmp_path / "here").exists()


def test_a_warm_start_whose_environment_fails_is_refused_in_one_line(tmp_path: Path) -> None:
    text = source(tmp_path, warm_start=1).replace('gate("step")', 'raise ValueError("no\\ncoin")')
    with pytest.raises(RollartError, match=r"domain 'coin' in a row failed; .*: no coin; mend it"):
        run_inline(text, tmp_path)
    assert not (tmp_path / "here").exists()


def test_a_setup_that_fails_without_a_message_is_recorded(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    with pytest.raises(ValueError, match=r"^$"), _recording_failure(writer):
        raise ValueError
    found = read_info(writer.uri)
    assert (found.status, found.error) == (RunStatus.FAILED, "ValueError")


def test_a_resumption_records_the_versions_that_it_runs_with(tmp_path: Path) -> None:
    made = replace(info(), versions={"polars": "0.1"}, status=RunStatus.INTERRUPTED)
    write_info(str(tmp_path), made, new=True)
    with _claimed(str(tmp_path), made, Tenure(Owner.this_process(), 1)):
        pass
    found = read_info(str(tmp_path))
    assert found.versions == {"polars": "0.1"}, "those that it was made with stay"
    assert [each.versions for each in found.resumed] == [package_versions()]


def test_a_resume_that_would_train_another_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", "32")
    text = source(tmp_path, steps=1, every=1).replace(
        "hidden=32", "hidden=int(os.environ['HIDDEN'])"
    )
    run_inline(text, tmp_path)
    run = open_run(tmp_path / "here")
    write_info(run.uri, replace(run.info, status=RunStatus.INTERRUPTED))
    monkeypatch.setenv("HIDDEN", "48")
    with pytest.raises(SettingsError, match=r"policy\.hidden = 48, but the run was made with 32"):
        runner.resume(run.uri, executor="inline")
    monkeypatch.setenv("HIDDEN", "32")
    said: list[Progress] = []
    again = runner.resume(run.uri, executor="inline", on_progress=said.append)
    assert again.status is RunStatus.FINISHED
    assert any("goes on with its copy of the pipeline file" in each.text for each in said)
    assert len(run.info.resumed) == 1, "and its end keeps the record"
