"""Old checkpoints are removed; the newest and that of the run's start stay."""

from pathlib import Path

import pytest

from rollart_flow.trainers.checkpoint.retention import remove_checkpoints_after, retain_checkpoints


@pytest.mark.parametrize(
    ("newest", "start", "left"),
    [(None, 0, {2, 4, 6, 8}), (2, 0, {6, 8}), (1, 2, {2, 8}), (9, 0, {2, 4, 6, 8})],
)
def test_the_newest_and_the_start_stay(
    tmp_path: Path, newest: int | None, start: int, left: set[int]
) -> None:
    for version in (2, 4, 6, 8):
        (tmp_path / f"{version:06d}").mkdir()
    kept = retain_checkpoints(str(tmp_path), newest, start)
    assert {int(path.name) for path in tmp_path.iterdir()} == left
    assert left <= kept <= left | {start}


def test_a_run_without_checkpoints_has_none_to_remove(tmp_path: Path) -> None:
    assert not retain_checkpoints(str(tmp_path / "checkpoints"), None, 0)


def test_checkpoints_after_a_version_are_removed(tmp_path: Path) -> None:
    for version in (2, 4, 6):
        (tmp_path / f"{version:06d}").mkdir()
    remove_checkpoints_after(str(tmp_path), 4)
    assert {int(path.name) for path in tmp_path.iterdir()} == {2, 4}


def test_what_a_killed_process_left_of_a_checkpoint_is_removed(tmp_path: Path) -> None:
    (tmp_path / "000002").mkdir()
    left = tmp_path / ".leftover-000004-0"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    remove_checkpoints_after(str(tmp_path), 4)
    assert [path.name for path in tmp_path.iterdir()] == ["000002"]
