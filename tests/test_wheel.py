"""The wheel of `make dist`: what is in it, and that it runs outside of the repository."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the sources, built without the network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_everything_that_the_library_reads_is_in_it(wheel: Path) -> None:
    inside = set(ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "rollart_flow"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    schemas = {f"rollart_flow/schemas/{path.name}" for path in (ROOT / "schemas").iterdir()}
    assert {*tracked, *schemas} <= inside
    assert not [name for name in inside if name.startswith(("tests", "docs"))]


def test_it_runs_outside_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Dependencies come from this environment, the library from the wheel alone."""
    venv.create(tmp_path / "venv", with_pip=False)
    site = sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")})
    ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    environment.pop("ROLLART_STORE", None)

    def run(*words: str) -> str:
        code = "import sys; from rollart_flow.cli import main; sys.exit(main())"
        command = [str(tmp_path / "venv" / "bin" / "python"), "-c", code, *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    short = ("-s", "steps=2", "-s", "every=2", "-s", "episodes=4", "--executor", "inline")
    assert "first  finished, 2 steps" in run("demo", "--name", "first", *short)
    run("init", "mine")
    assert (tmp_path / "mine" / "pipeline.py").exists()
    assert "finished" in run("runs")
