"""Copies of what lies in S3 stay for a day after somebody asked for them."""

import os
import time
from pathlib import Path

from rollart_flow.store.cache import KEPT_S, local_file, touch


def test_a_file_of_this_machine_is_its_own_copy(tmp_path: Path) -> None:
    assert local_file(str(tmp_path / "pipeline.py")) == tmp_path / "pipeline.py"


def test_a_copy_that_nobody_wanted_for_long_goes_when_another_is_wanted(tmp_path: Path) -> None:
    long_ago = time.time() - KEPT_S - 60
    for name in ("wanted", "lately", "forgotten"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    for name in ("wanted", "forgotten"):
        os.utime(tmp_path / name, (long_ago, long_ago))
    touch(tmp_path / "wanted")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lately", "wanted"]
    assert (tmp_path / "wanted").stat().st_mtime > long_ago
