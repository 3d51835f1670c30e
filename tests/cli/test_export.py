"""`rollart export`: what people and programs read."""

import json
from pathlib import Path

import pytest

from rollart_flow.store import Run
from tests.cli.shell import refused, rollart


def test_a_version_is_written_and_named(finished_run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "a model"
    said = rollart("export", finished_run.uri, "--step", "2", "--to", str(folder))
    assert said.code == 0
    assert said.out.startswith(f"version 2 of small is in {folder}, ")
    assert said.out.endswith(f"  vllm serve '{folder}'\n")
    assert (folder / "README.md").is_file()


def test_programs_read_json(finished_run: Run, tmp_path: Path) -> None:
    said = rollart("export", finished_run.uri, "--to", str(tmp_path / "model"), "--json")
    found = json.loads(said.out)
    assert found.pop("size_bytes") > 0
    folder = str(tmp_path / "model")
    assert found == {
        "run": "small", "version": 4, "folder": folder, "source": "weights", "lora": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--to", "."), "exists; give a new folder"),
        (("--to", "model", "--version", "9"), "run small holds no weights of version 9; it holds"),
        (("--to", "model", "--lora"), "run small has no LoRA adapter"),
        (("--to", "model", "--version", "-1"), "--version"),
        ((), "--to"),
    ],
)
def test_wrong_use_is_one_line(arguments: tuple[str, ...], said: str, finished_run: Run) -> None:
    assert said in refused(rollart("export", finished_run.uri, *arguments))
