"""`rollart init`: the project runs at once, and its own test passes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollart_flow.pipeline import load_pipeline
from tests.cli.shell import refused, rollart

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    said = rollart("init", "my-agent", "--folder", str(tmp_path / "made"))
    assert said.code == 0
    assert "rollart run pipeline.py" in said.out
    return tmp_path / "made"


def test_it_has_a_pipeline_a_test_and_a_readme_of_ten_lines(project: Path) -> None:
    files = sorted(path.name for path in project.iterdir())
    assert files == ["README.md", "pipeline.py", "test_pipeline.py"]
    assert len((project / "README.md").read_text().splitlines()) <= 10
    assert load_pipeline(project / "pipeline.py").pipeline.name == "my-agent"


def test_its_own_tests_pass(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "3 passed" in done.stdout


def test_it_is_formatted_and_has_no_lint(project: Path) -> None:
    for words in (("format", "--check", "--line-length", "100"), ("check", "--select", "F,B,N,UP")):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--isolated", str(project)],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_it_overwrites_nothing(project: Path) -> None:
    line = refused(rollart("init", "other", "--folder", str(project)))
    assert line.startswith(f"{project} has pipeline.py already")


def test_a_name_that_is_no_folder_is_refused() -> None:
    assert "project name '../x'" in refused(rollart("init", "../x"))
