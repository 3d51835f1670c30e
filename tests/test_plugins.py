"""An installed package adds an engine, which a pipeline names, plans and generates with."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLUGINS = ROOT / "tests" / "plugins"
"""A folder of installed packages: modules with their `.dist-info`."""


def rollart(*arguments: str, plugins: bool = True, **environment: str) -> tuple[int, str]:
    """Exit code of a command and all that it printed."""
    path = [str(ROOT), str(PLUGINS)] if plugins else [str(ROOT)]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from rollart_flow.cli import main; sys.exit(main())",
            *arguments,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    return done.returncode, done.stdout + done.stderr


PIPELINE = "pipelines/two_domains.py"
SMALL = (
    "-s", "train.steps=1", "-s", "batch_size=8", "-s", "group_size=4", "-s", "policy.hidden=32",
    "-s", "policy.engine=tiny", "-s", "evaluate.episodes=2",
)  # fmt: skip


def test_a_plan_takes_the_engine_of_a_package_and_refuses_it_without_the_package() -> None:
    code, _ = rollart("plan", PIPELINE, "-s", "policy.engine=tiny")
    assert code == 0
    code, said = rollart("plan", PIPELINE, "-s", "policy.engine=tiny", plugins=False)
    assert code == 2
    assert "policy.engine='tiny': expected one of embedded, vllm" in said


def test_a_run_generates_with_the_engine_of_a_package(tmp_path: Path) -> None:
    built = tmp_path / "built"
    code, said = rollart(
        "run", PIPELINE, "--store", str(tmp_path), *SMALL, TINY_ENGINE_BUILT=str(built)
    )
    assert code == 0, said
    assert built.read_text()
