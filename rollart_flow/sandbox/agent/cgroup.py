"""A control group for each box: memory, processes and processor time of all its processes together.

Both interfaces of the kernel are used, version 2 with one tree and version 1 with a tree for each
controller. A host where this process may create no group has none; the agent's limits for single
processes hold in any case.

A process that is killed leaves the groups of its boxes, whose names have its label (`owner`);
`sweep_groups` removes them.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rollart_flow.sandbox.base import SandboxLimits
from rollart_flow.sandbox.owner import is_owned, owner_label

MOUNT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_CONTROLLERS = ("memory", "pids", "cpu")
_PREFIX = "rollart-"
_KILLED_S = 5.0
"""Longest wait for the end of processes that a sweep has killed [s]."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The group of one box: one folder with version 2, one for each controller with version 1."""

    folders: dict[str, Path]
    unified: bool

    @property
    def procs_files(self) -> tuple[str, ...]:
        """Files that a process writes its id to, to enter the group."""
        return tuple(sorted({str(folder / "cgroup.procs") for folder in self.folders.values()}))

    def limit(self, limits: SandboxLimits) -> None:
        """Set the bounds; files of the box are memory, so that both sizes are added.

        Raises:
            OSError: the kernel refuses one.
        """
        memory = (limits.memory_mb + limits.disk_mb) << 20
        quota = max(1000, round(limits.cpus * _PERIOD_US))
        own = 4  # bubblewrap and the agent
        if self.unified:
            self._write("memory", "memory.max", memory)
            self._write_if_there("memory", "memory.swap.max", 0)
            self._write("cpu", "cpu.max", f"{quota} {_PERIOD_US}")
        else:
            self._write("memory", "memory.limit_in_bytes", memory)
            self._write_if_there("memory", "memory.memsw.limit_in_bytes", memory)
            self._write("cpu", "cpu.cfs_period_us", _PERIOD_US)
            self._write("cpu", "cpu.cfs_quota_us", quota)
        self._write("pids", "pids.max", limits.processes + own)

    def memory_kills(self) -> int:
        """Return how many processes the kernel killed since the group has reached its memory."""
        name = "memory.events" if self.unified else "memory.oom_control"
        return self._counter("memory", name, "oom_kill")

    def peak_memory_mb(self) -> float:
        """Return the largest memory that the group has had [MiB]; 0 if the kernel does not tell."""
        name = "memory.peak" if self.unified else "memory.max_usage_in_bytes"
        try:
            return int((self.folders["memory"] / name).read_text()) / (1 << 20)
        except (OSError, ValueError):
            return 0.0

    def remove(self) -> None:
        """Remove the group; its processes have ended. A group that is gone is no error."""
        for folder in {*self.folders.values()}:
            with suppress(FileNotFoundError):
                folder.rmdir()

    def _counter(self, controller: str, name: str, key: str) -> int:
        try:
            lines = (self.folders[controller] / name).read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)

    def _write(self, controller: str, name: str, value: object) -> None:
        (self.folders[controller] / name).write_text(str(value))

    def _write_if_there(self, controller: str, name: str, value: object) -> None:
        if (self.folders[controller] / name).exists():
            with suppress(OSError):
                self._write(controller, name, value)


def create_control_group(
    limits: SandboxLimits, mount: Path = MOUNT, membership: Path = Path("/proc/self/cgroup")
) -> ControlGroup | None:
    """Create a group with the bounds of a box; None where this process may not.

    Args:
        limits: the bounds.
        mount: folder at which the kernel shows its control groups.
        membership: file that names the groups of this process.
    """
    parents = _parents(mount, membership)
    if parents is None:
        return None
    name = f"{_PREFIX}{owner_label()}-{next(_numbers)}"
    folders = {controller: parent / name for controller, parent in parents.items()}
    group = ControlGroup(folders, unified=(mount / "cgroup.controllers").exists())
    try:
        for folder in {*folders.values()}:
            folder.mkdir()
        group.limit(limits)
    except OSError:
        with suppress(OSError):
            group.remove()
        return None
    return group


def group_of(membership: Path, mount: Path = MOUNT) -> ControlGroup | None:
    """Return the group that a process is in, to be read; None where the kernel does not show it.

    Args:
        membership: file that names the groups of the process, `/proc/PID/cgroup`.
        mount: folder at which the kernel shows its control groups.
    """
    own = _own_groups(membership)
    unified = (mount / "cgroup.controllers").exists()
    folders = {}
    for controller in _CONTROLLERS:
        place = mount if unified else mount / controller
        path = own.get("" if unified else controller)
        if path is None or not (place / path.lstrip("/")).is_dir():
            return None
        folders[controller] = place / path.lstrip("/")
    return ControlGroup(folders, unified)


def sweep_groups(mount: Path = MOUNT, membership: Path = Path("/proc/self/cgroup")) -> int:
    """End what lives in groups whose owner has died, and remove them; return their number.

    A group with a process that this one cannot see, in another process namespace, stays.
    """
    found: dict[str, list[Path]] = {}
    for parent in {*(_parents(mount, membership) or {}).values()}:
        for folder in parent.glob(f"{_PREFIX}*-*-*"):
            found.setdefault(folder.name, []).append(folder)
    return sum(
        _swept(folders)
        for name, folders in found.items()
        if not is_owned(name.removeprefix(_PREFIX).rpartition("-")[0])
    )


def _swept(folders: list[Path]) -> bool:
    """Kill the processes of a group and remove its folders; whether it is gone."""
    try:
        pids = {int(pid) for each in folders for pid in _lines(each / "cgroup.procs")}
        if 0 in pids:
            return False
        for pid in pids:
            _kill(pid)
        for folder in folders:
            folder.rmdir()
    except OSError:
        return False
    return True


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []


def _kill(pid: int) -> None:
    """Kill a process and wait for its end."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], _KILLED_S)
        finally:
            os.close(pidfd)


def _parents(mount: Path, membership: Path) -> dict[str, Path] | None:
    """Return the folder of each controller in which this process may create groups."""
    own = _own_groups(membership)
    if (mount / "cgroup.controllers").exists():
        inner = own.get("", "/").lstrip("/")
        for folder in (mount / inner, (mount / inner).parent, mount):
            if folder.is_relative_to(mount) and _delegated(folder):
                return dict.fromkeys(_CONTROLLERS, folder)
        return None
    parents = {}
    for controller in _CONTROLLERS:
        folder = mount / controller / own.get(controller, "/").lstrip("/")
        if not os.access(folder, os.W_OK):
            folder = mount / controller
        parents[controller] = folder
    return parents if all(os.access(folder, os.W_OK) for folder in parents.values()) else None


def _own_groups(membership: Path) -> dict[str, str]:
    """Return the path of this process's group by controller; that of version 2 has the name ""."""
    groups = {}
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _delegated(folder: Path) -> bool:
    """Whether groups below a folder of version 2 can have the three bounds."""
    try:
        enabled = (folder / "cgroup.subtree_control").read_text().split()
        if not os.access(folder, os.W_OK):
            return False
        missing = [name for name in _CONTROLLERS if name not in enabled]
        if missing:
            wanted = " ".join(f"+{name}" for name in missing)
            (folder / "cgroup.subtree_control").write_text(wanted)
    except OSError:
        return False
    return True
