"""Programs are installed whole or not at all."""

import json
import os
import zipfile
from pathlib import Path

import pytest

from rollart_flow.errors import RollartError, SettingsError
from rollart_flow.harness.profiles.installing import agents_folder, install, installed_version
from rollart_flow.harness.profiles.pins import Installer, Pin
from tests.cli.shell import refused, rollart

PROGRAM = Pin(installer=Installer.NPM, package="@some/program", version="1.2.3")
LIBRARY = Pin(installer=Installer.PIP, package="rollart-some-agent", version="1.0")


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of npm, since tests reach no registry; returns what it was asked."""
    folder, asked = tmp_path / "bin", tmp_path / "asked"
    folder.mkdir()
    script = (
        f'#!/bin/sh\necho "$@" >> {asked}\n'
        'while [ "$1" != --prefix ]; do shift; done\n'
        'mkdir -p "$2/node_modules" && echo hello > "$2/node_modules/program"\n'
        'case "$3" in *@9*) echo "npm error code E404" >&2; echo "npm error no such version" >&2;\n'
        "  exit 1;; esac\n"
    )
    (folder / "npm").write_text(script)
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return asked


def test_a_program_is_installed_without_its_scripts(npm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "agents" / "program"
    assert installed_version(folder) is None
    install(PROGRAM, folder)
    assert installed_version(folder) == "1.2.3"
    assert (folder / "node_modules" / "program").read_text() == "hello\n"
    assert folder.stat().st_mode & 0o055 == 0o055  # boxes may run as another user
    assert "--ignore-scripts" in npm.read_text()
    assert npm.read_text().split()[-1] == "@some/program@1.2.3"


def test_what_fails_leaves_what_was_there(npm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "agents" / "program"
    install(PROGRAM, folder)
    wrong = Pin(installer=Installer.NPM, package="program", version="9.0.0")
    with pytest.raises(RollartError, match=r"npm:program@9\.0\.0 could not .*no such version"):
        install(wrong, folder)
    assert installed_version(folder) == "1.2.3"
    assert os.listdir(folder.parent) == ["program"]


def test_without_npm_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SettingsError, match=r"installed by npm, which is missing; install Node\.js"
    ):
        install(PROGRAM, tmp_path / "program")


@pytest.mark.whole  # pip takes seconds to start
def test_pip_installs_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "rollart_some_agent"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "WORDS = 7\n")
        wheel.writestr(
            f"{about}/METADATA",
            "Metadata-Version: 2.1\nName: x\nVersion: 1.0\n".replace(
                "Name: x", "Name: rollart-some-agent"
            ),
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    install(LIBRARY, tmp_path / "agent")
    assert (tmp_path / "agent" / f"{name}.py").exists()
    assert installed_version(tmp_path / "agent") == "1.0"
    mark = tmp_path / "agent" / "rollart.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "python": "2.7"}))
    assert installed_version(tmp_path / "agent") is None  # compiled for another Python


def test_the_folder_of_programs_is_that_of_the_user() -> None:
    assert agents_folder({"ROLLART_AGENTS": "/some/folder"}) == Path("/some/folder")
    found = agents_folder({"XDG_DATA_HOME": "/home/me/data"})
    root = Path("/var/lib/rollart_flow/agents")
    assert found == (root if os.geteuid() == 0 else Path("/home/me/data/rollart_flow/agents"))


def test_the_command_installs_and_lists(npm: Path, tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path / "agents"))
    said = rollart("agents", "install", "pi", *folder)
    assert said.code == 0, said.err
    assert "was installed in" in said.out
    assert "node-linux-" in npm.read_text()
    assert " is in " in rollart("agents", "install", "pi", *folder).out
    assert len(npm.read_text().splitlines()) == 1
    rows = {row["name"]: row for row in json.loads(rollart("agents", *folder, "--json").out)}
    assert rows["pi"]["installed"] == rows["pi"]["version"]
    assert rows["pi"]["where"] == str(tmp_path / "agents" / "pi")
    assert rows["codex"]["installed"] is None
    assert rows["codex"]["wire"] == "responses"
    assert "gemini-cli" in rollart("agents", *folder).out


def test_the_command_refuses_an_unknown_program() -> None:
    line = refused(rollart("agents", "install", "claude"))
    assert "agent 'claude': expected one of claude-code," in line
