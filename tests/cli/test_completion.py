"""Completion: what a shell gets when it asks, and the scripts by which it does."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import COMMAND, refused, rollart

LINES = {
    "bash": {"COMP_WORDS": "rollart show al", "COMP_CWORD": "2"},
    "zsh": {"_TYPER_COMPLETE_ARGS": "rollart show al"},
    "fish": {"_TYPER_COMPLETE_ARGS": "rollart show al", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("alpha-1", "alpha-2", "beta"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    (tmp_path / "runs" / "alone").mkdir()
    return tmp_path


@pytest.mark.parametrize("shell", LINES)
def test_names_of_runs_are_completed(shell: str, store: Path) -> None:
    asked = {**os.environ, **LINES[shell], "_ROLLART_COMPLETE": f"complete_{shell}"}
    asked.pop("ROLLART_STORE", None)
    done = subprocess.run(COMMAND, cwd=store, env=asked, capture_output=True, text=True, timeout=60)
    assert "alpha-1" in done.stdout
    assert "alpha-2" in done.stdout
    assert "beta" not in done.stdout
    assert "alone" not in done.stdout


def test_the_script_for_bash_works_in_bash(store: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    program = store / "rollart"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    lines = rollart("completion", "bash").out
    lines += "COMP_WORDS=(rollart show al) COMP_CWORD=2\n"
    lines += f'_rollart_completion {program}\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
    asked = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    asked.pop("ROLLART_STORE", None)
    done = subprocess.run(
        [bash, "-c", lines], cwd=store, env=asked, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["alpha-1", "alpha-2"], done.stderr


def test_another_shell_is_refused_with_those_that_there_are() -> None:
    line = refused(rollart("completion", "tcsh"))
    assert line == "completion='tcsh': expected one of bash, fish, zsh"


@pytest.mark.parametrize("shell", LINES)
def test_each_script_names_its_protocol(shell: str) -> None:
    assert f"_ROLLART_COMPLETE=complete_{shell}" in rollart("completion", shell).out


def test_completion_has_one_way() -> None:
    assert "-completion" not in rollart("--help").out


def test_another_shell_is_refused() -> None:
    assert "tcsh" in refused(rollart("completion", "tcsh"))
