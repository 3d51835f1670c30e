"""`rollart export --format`: trajectories of a run as a data set."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rollart_flow import export_data
from rollart_flow.errors import QueryError, SettingsError
from rollart_flow.exporting import data_files
from rollart_flow.store import Run, RunInfo, RunWriter, open_run
from rollart_flow.store.images import ImageFolder
from rollart_flow.types import Image, Outcome, Trajectory
from tests.builders import branched, table, trajectory, turn
from tests.cli.shell import refused, rollart

SECRET = "sk-do-not-tell"


def talk(number: int, **fields: Any) -> Trajectory:
    said = [
        {"turn": 0, "role": "user", "content": "ü?"},
        {"turn": 0, "role": "assistant", "content": "", "tool_calls": [
            {"id": "call00000", "type": "function",
             "function": {"name": "look", "arguments": {"at": "é"}}}]},
        {"turn": 1, "role": "tool", "content": "a\u2028door", "tool_call_id": "call00000"},
        {"turn": 1, "role": "assistant", "content": "open"},
    ]  # fmt: skip
    both = (turn(""), turn("open", start=5, end=5))
    return trajectory("g", number, messages=json.dumps(said), turns=both, **fields)


def run_of(folder: Path, *made: Trajectory) -> Run:
    info = RunInfo("old", "test", 0, {"train": {"key": SECRET}}, overrides={"key": SECRET})
    writer = RunWriter.create(str(folder / "old"), info)
    images = [image for each in made for image in each.images or ()]
    ImageFolder(writer.uri).put(images)
    writer.commit("trajectories", table(*made))
    writer.close()
    return open_run(writer.uri)


def lines(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().split("\n") if line]


def test_conversations_are_messages_with_what_the_run_knows(tmp_path: Path) -> None:
    run = run_of(tmp_path, talk(0, reward=0.5, reward_parts={"a": 0.5}), trajectory("g", 1))
    exported = export_data(run, tmp_path / "set")
    assert (exported.rows, exported.left_out) == (2, 0)
    first, second = lines(tmp_path / "set")
    assert (first["reward"], first["reward_parts"]) == (0.5, {"a": 0.5})
    assert (first["trajectory_id"], first["group_id"], first["domain"]) == ("g-00", "g", "coin")
    call = first["messages"][1]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"at": "é"}
    assert [m["role"] for m in first["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert [m["role"] for m in second["messages"]] == ["user", "assistant"]


def test_a_filter_chooses_and_what_has_no_turn_is_counted(tmp_path: Path) -> None:
    failed = trajectory("g", 2, reward=None, outcome=Outcome.FAILED, turns=())
    run = run_of(tmp_path, trajectory("g", 0, reward=0.0), trajectory("g", 1), failed)
    assert export_data(run, tmp_path / "a", filter="reward > 0").rows == 1
    assert export_data(run, tmp_path / "b", filter=pl.col("attempt") == 0).rows == 1
    assert export_data(run, tmp_path / "c", filter="varied").rows == 2
    every = export_data(run, tmp_path / "d")
    assert (every.rows, every.left_out) == (2, 1)
    assert export_data(run, tmp_path / "e", filter="attempt > 9", format="hf").rows == 0
    with pytest.raises(QueryError, match="unable to find column"):
        export_data(run, tmp_path / "f", filter="nope = 1")
    assert not (tmp_path / "f").exists()


def test_what_another_branch_said_has_no_weight(tmp_path: Path) -> None:
    said = json.dumps([
        {"turn": turn, "role": role, "content": role}
        for turn in (0, 1)
        for role in ("user", "assistant")
    ])  # fmt: skip
    run = run_of(tmp_path, *branched(0, 0, messages=said))
    export_data(run, tmp_path / "set", filter="branch = 1")
    (row,) = lines(tmp_path / "set")
    assert [message.get("weight") for message in row["messages"]] == [None, 0, None, None]


def test_a_card_says_where_the_rows_come_from_and_tells_no_secret(tmp_path: Path) -> None:
    run = run_of(tmp_path, talk(0), talk(1))
    export_data(run, tmp_path / "set", format="hf", filter="reward > 0")
    card = (tmp_path / "set" / "README.md").read_text()
    assert 'path: "train-*.parquet"' in card
    assert "| rows | 2 |" in card
    assert "rollart export old --format hf --what conversations --filter 'reward > 0'" in card
    assert SECRET not in card


def test_images_are_files_beside_the_rows(tmp_path: Path) -> None:
    image = Image.of(png())
    part = {"type": "image_url", "image_url": {"url": image.url}}
    said = json.dumps([
        {"turn": 0, "role": "user", "content": [{"type": "text", "text": "see "}, part]},
        {"turn": 0, "role": "assistant", "content": "a lake"},
    ])  # fmt: skip
    run = run_of(tmp_path, trajectory("g", 0, messages=said, images=(image,)))
    assert export_data(run, tmp_path / "set").images == 1
    (row,) = lines(tmp_path / "set")
    path = row["messages"][0]["content"][1]["image_url"]["url"]
    assert (tmp_path / "set" / path).read_bytes() == image.png
    assert row["images"] == [path]
    with pytest.raises(SettingsError, match="export them to a folder"):
        export_data(run, tmp_path / "set.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "set"]


def png() -> bytes:
    from io import BytesIO

    from PIL import Image as pillow  # noqa: N813

    file = BytesIO()
    pillow.new("RGB", (4, 4), (1, 2, 3)).save(file, "PNG")
    return file.getvalue()


def test_large_data_sets_have_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollart_flow.exporting.data._AT_ONCE", {"conversations": 2, "tokens": 1})
    run = run_of(tmp_path, *(trajectory("g", number) for number in range(5)))
    exported = export_data(run, tmp_path / "set", file_bytes=1)
    assert exported.files == tuple(f"train-0000{n}-of-00003.jsonl" for n in range(3))
    assert [row["attempt"] for row in lines(tmp_path / "set")] == [0, 1, 2, 3, 4]


def test_an_interrupted_export_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    run = run_of(tmp_path, talk(0))
    monkeypatch.setattr(data_files.DataFiles, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_data(run, tmp_path / "set", format="parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "csv"), "expected one of hf, jsonl, parquet"),
        (("--format", "jsonl", "--what", "words"), "expected one of conversations, tokens"),
        (("--format", "jsonl", "--version", "1"), "--format exports rows"),
        (("--format", "jsonl", "--lora"), "--format exports rows"),
        (("--filter", "reward > 0"), "--filter and --what go with --format"),
        (("--format", "jsonl", "--filter", "reward >"), "reward >"),
    ],
)
def test_wrong_use_is_one_line(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    run = run_of(tmp_path, talk(0))
    assert said in refused(rollart("export", run.uri, "--to", str(tmp_path / "set"), *options))
    assert not (tmp_path / "set").exists()
