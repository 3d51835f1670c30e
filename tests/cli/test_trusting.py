"""The pipeline of somebody else's run is executed only if the user agrees."""

import os
from pathlib import Path

import pytest

from rollart_flow.cli.trusting import check_trusted
from rollart_flow.errors import SettingsError
from rollart_flow.store.layout import read_pipeline
from tests.cli.shell import refused, rollart
from tests.runs import small_run

EVIL = """from pathlib import Path
Path({!r}).write_text("executed")
raise ValueError("no pipeline")
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that the pipeline writes where it is executed."""
    return tmp_path / "marker"


@pytest.fixture
def foreign(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run whose pipeline other users may write."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = small_run(tmp_path)
    pipeline = Path(run.uri) / "pipeline.py"
    pipeline.write_text(EVIL.format(str(marker)))
    pipeline.chmod(0o666)
    return run.uri


COMMANDS = (("replay", "{}", "--step", "1"), ("resume", "{}"))


@pytest.mark.parametrize("command", COMMANDS)
def test_in_a_pipe_it_is_refused(command: tuple[str, ...], foreign: str, marker: Path) -> None:
    line = refused(rollart(*(word.format(foreign) for word in command)))
    assert line.endswith(
        "is not yours, and its pipeline.py would be executed; read it, and pass --trust to agree"
    )
    assert not marker.exists()


def test_a_fork_asks_too(foreign: str, marker: Path) -> None:
    pipeline = str(Path(__file__).parents[2] / "pipelines" / "two_domains.py")
    assert "--trust" in refused(rollart("fork", foreign, pipeline, "--step", "1"))
    assert not marker.exists()


def test_an_agreement_holds_until_the_pipeline_changes(foreign: str, marker: Path) -> None:
    replay = ("replay", foreign, "--step", "1")
    assert "no pipeline" in rollart(*replay, "--trust").err
    assert marker.read_text() == "executed"
    assert "--trust" not in rollart(*replay).err
    path = Path(foreign) / "pipeline.py"
    path.write_text(read_pipeline(foreign) + "# more")
    assert "--trust" in refused(rollart(*replay))


@pytest.mark.parametrize("yes", [True, False])
def test_on_a_terminal_the_user_is_asked(
    yes: bool, foreign: str, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr("typer.confirm", lambda *_, **__: yes)
    if yes:
        check_trusted(foreign, False)
    else:
        with pytest.raises(SettingsError, match="--trust"):
            check_trusted(foreign, False)


def test_a_run_of_this_user_asks_nothing(tmp_path: Path, marker: Path) -> None:
    run = small_run(tmp_path)
    path = Path(run.uri) / "pipeline.py"
    path.write_text(EVIL.format(str(marker)))
    assert "no pipeline" in rollart("replay", run.uri, "--step", "1").err
    assert marker.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_trusted(
    tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = small_run(tmp_path)
    path = Path(run.uri) / "pipeline.py"
    path.write_text(EVIL.format(str(marker)))
    os.chown(path, 65534, 65534)
    assert "--trust" in refused(rollart("replay", run.uri, "--step", "1"))
    assert not marker.exists()
