"""Control groups of both versions, in folders that look like the kernel's."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from rollart_flow.sandbox import owner
from rollart_flow.sandbox.agent.cgroup import create_control_group, sweep_groups
from rollart_flow.sandbox.base import SandboxLimits
from rollart_flow.sandbox.owner import is_owned, name_owner, owner_label, owner_labels

LIMITS = SandboxLimits(memory_mb=100, disk_mb=28, processes=10, cpus=0.5)


def test_version_2_takes_the_nearest_group_that_may_have_children(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    own = tmp_path / "user" / "service"
    own.mkdir(parents=True)
    (tmp_path / "user" / "cgroup.subtree_control").write_text("memory pids cpu")
    membership = tmp_path / "membership"
    membership.write_text("0::/user/service\n")
    group = create_control_group(LIMITS, tmp_path, membership)
    assert group is not None
    (folder,) = {*group.folders.values()}
    assert folder.parent == tmp_path / "user"
    assert (folder / "memory.max").read_text() == str(128 << 20)
    assert (folder / "cpu.max").read_text() == "50000 100000"
    assert (folder / "pids.max").read_text() == "14"
    assert group.procs_files == (str(folder / "cgroup.procs"),)
    (folder / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    (folder / "memory.peak").write_text(str(3 << 20))
    assert group.memory_kills() == 1
    assert group.peak_memory_mb() == 3


def test_version_1_has_a_group_for_each_controller(tmp_path: Path) -> None:
    for name in ("memory", "pids", "cpu"):
        (tmp_path / name).mkdir()
    (tmp_path / "memory" / "own").mkdir()
    membership = tmp_path / "membership"
    membership.write_text("4:memory:/own\n3:cpu,cpuacct:/\n2:pids:/\n0::/\n")
    group = create_control_group(LIMITS, tmp_path, membership)
    assert group is not None
    assert group.folders["memory"].parent == tmp_path / "memory" / "own"
    assert len(group.procs_files) == 3
    assert (group.folders["memory"] / "memory.limit_in_bytes").read_text() == str(128 << 20)
    assert (group.folders["cpu"] / "cpu.cfs_quota_us").read_text() == "50000"
    assert group.memory_kills() == 0
    assert group.peak_memory_mb() == 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_host_that_allows_no_group_has_none(tmp_path: Path, version: int) -> None:
    if version == 2:
        (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    membership = tmp_path / "membership"
    membership.write_text("0::/\n")
    assert create_control_group(LIMITS, tmp_path, membership) is None
    assert not [name for name in os.listdir(tmp_path) if name.startswith("rollart")]


def test_groups_whose_owner_has_died_are_swept_with_what_lives_in_them(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("memory pids cpu")
    membership = tmp_path / "membership"
    membership.write_text("0::/\n")
    group = create_control_group(LIMITS, tmp_path, membership)
    assert group is not None
    for name in ("rollart-1-2-3", "rollart-77-5", "another-1-2-3", "rollart-4194305-7-0"):
        (tmp_path / name).mkdir()
    with subprocess.Popen(["sleep", "60"]) as left:
        procs = tmp_path / "rollart-1-2-3" / "cgroup.procs"
        procs.write_text(f"{left.pid}\n")
        assert sweep_groups(tmp_path, membership) == 1  # a file is in the way of the other
        assert left.wait(timeout=10) == -signal.SIGKILL
        procs.write_text("0\n")
        assert sweep_groups(tmp_path, membership) == 0
        procs.unlink()
        assert sweep_groups(tmp_path, membership) == 1
    own = group.folders["memory"].name
    kept = {path.name for path in tmp_path.glob("*-*")}
    assert kept == {own, "another-1-2-3", "rollart-77-5"}


def test_an_owner_is_known_by_its_start_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_for", {})
    label = owner_label()
    assert is_owned(label)
    pid, _, started = label.partition("-")
    assert not is_owned(f"{pid}-{int(started) + 1}")
    assert is_owned("no label")
    name_owner("run", "pool")
    assert owner_labels() == {"owner": label, "run": "run", "pool": "pool"}
