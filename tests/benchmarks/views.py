"""Boxes without commands: each is a real copy-on-write view of an image of the cache.

A view is an overlay over the tree, with a tmpfs of its own for what is written, as a box of
bubblewrap has it; it is mounted by system calls of this process, in a mount namespace of its own.
"""

import asyncio
import ctypes
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from rollart_flow.errors import SandboxError
from rollart_flow.sandbox.base import (
    CommandResult,
    Sandbox,
    SandboxSnapshot,
    SandboxSpec,
)
from rollart_flow.sandbox.images.cache import ImageCache
from rollart_flow.sandbox.images.lease import ImageLease
from tests.sandbox.boxes_in_memory import BoxWithoutFiles

_NEW_MOUNTS, _NEW_USER, _PRIVATE, _DETACH = 0x20000, 0x10000000, 1 << 18 | 1 << 14, 2
_libc = ctypes.CDLL(None, use_errno=True)


def own_mounts() -> None:
    """Give this process, which has one thread, a mount namespace of its own.

    Raises:
        OSError: this user may not make one.
    """
    user, group = os.geteuid(), os.getegid()
    _call(_libc.unshare(_NEW_MOUNTS | (_NEW_USER if user else 0)))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _call(_libc.mount(None, b"/", None, _PRIVATE, None))


def _call(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class View(BoxWithoutFiles):
    """One view. It answers as a box does that has no command to run."""

    def __init__(self, spec: SandboxSpec, lease: ImageLease, folder: Path) -> None:
        self.spec = spec
        self.folder = folder
        self._lease = lease
        self._open = True

    def mount(self) -> None:
        """Mount it, and write to it.

        Raises:
            SandboxError: it shows what another box wrote.
        """
        self.folder.mkdir()
        place, size = bytes(self.folder), self.spec.limits.disk_mb << 20
        _call(_libc.mount(b"none", place, b"tmpfs", 0, b"size=%d" % size))
        for name in ("changes", "work", "root"):
            (self.folder / name).mkdir()
        options = b"lowerdir=%b,upperdir=%b/changes,workdir=%b/work" % (
            bytes(self._lease.root), place, place,
        )  # fmt: skip
        if os.getuid() != 0 or Path("/proc/self/uid_map").read_text().split()[1] != "0":
            options += b",userxattr"
        _call(_libc.mount(b"overlay", place + b"/root", b"overlay", 0, options))
        if (self.folder / "root" / "file").read_text() != "of the image":
            raise SandboxError("the view has the file of another box")
        (self.folder / "root" / "file").write_text("of the box")

    def unmount(self) -> None:
        """Undo `mount`, as far as it came."""
        for name in (b"/root", b""):
            _libc.umount2(bytes(self.folder) + name, _DETACH)
        if self.folder.exists():
            self.folder.rmdir()
        self._lease.release()

    @property
    def alive(self) -> bool:
        return self._open

    async def processes(self) -> int:
        return 0

    async def close(self) -> None:
        if self._open:
            self._open = False
            await asyncio.to_thread(self.unmount)

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        raise NotImplementedError


class Views:
    """Makes views, and fails at some of the starts.

    Args:
        cache: has the images.
        folder: empty folder for the mounts.
        failing: fraction of the starts that fail, half of them after the view was mounted.
        chance: decides which.
    """

    def __init__(self, cache: ImageCache, folder: Path, failing: float, chance: Random) -> None:
        self._cache = cache
        self._folder = folder
        self._failing = failing
        self._chance = chance
        self._names = itertools.count()
        self.failures = 0
        """Starts that failed."""

    async def __call__(self, spec: SandboxSpec, snapshot: SandboxSnapshot | None) -> Sandbox:
        """Start a view; see `SandboxVariant.create`."""
        assert spec.image is not None
        fate = self._chance.random()
        if fate < self._failing / 2:
            self.failures += 1
            raise SandboxError("no sandbox can be started: told to fail")
        lease = await asyncio.to_thread(self._cache.acquire, spec.image)
        view = View(spec, lease, self._folder / str(next(self._names)))
        try:
            await asyncio.to_thread(view.mount)
            if fate < self._failing:
                self.failures += 1
                raise SandboxError("the sandbox did not start: told to fail")
        except BaseException:
            await view.close()
            raise
        return view
