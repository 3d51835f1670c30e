"""The root file system of a box: the host's `/usr`, or an image, as it is or copy-on-write.

Bubblewrap 0.8 cannot mount an overlay. `staged` therefore gives it a mount namespace in which one
is mounted over the image at an empty folder (`runtime.stage_folder`), with a tmpfs of the box's
size for what the box writes. Root mounts it as root and goes on as `nobody`; any other user mounts
it in a user namespace. Either way the mounts vanish with the last process of the namespace.

Invariants: the tree of an image is never written to. No link of an image decides where bubblewrap
mounts or reads something, since it would follow the link on the host.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rollart_flow.errors import SettingsError
from rollart_flow.sandbox.agent.runtime import stage_folder
from rollart_flow.sandbox.base import SOCKET_PATH, SandboxSpec
from rollart_flow.sandbox.images.digest import ImageConfig, is_digest
from rollart_flow.sandbox.images.lease import ImageLease
from rollart_flow.sandbox.images.settings import default_cache
from rollart_flow.sandbox.images.tree import NOBODY

_INODES_PER_MB = 256
"""Files that a copy-on-write box may make for each MiB of its disk."""
_OVERLAY = (
    'mount -i -n -t tmpfs -o "size=$3,nr_inodes=$4,mode=755,nosuid,nodev" none "$1"'
    ' && install -d $5 "$1/changes" "$1/work" "$1/root" && cd "$2"'
    " && mount -i -n -t overlay -o"
    ' "nosuid,nodev,lowerdir=.,upperdir=$1/changes,workdir=$1/work$6" none "$1/root"'
    ' && shift 6 && exec "$@"'
)
_BIND = 'cd "$2" && mount -i -n --bind . "$1" && shift 2 && exec "$@"'
_IN_MEMORY = ("proc", "dev", "tmp", "run")
SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SYSTEM_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types")


@dataclass(frozen=True, slots=True)
class BoxRoot:
    """The root file system of one box."""

    folder: Path | None = None
    """The tree of the image; None means the host's `/usr` alone."""
    config: ImageConfig = field(default_factory=lambda: ImageConfig(host=True))
    lease: ImageLease | None = None
    """The use of an image of the cache, whose folder only the cache's user may enter."""

    def release(self) -> None:
        """Give the image back to the cache."""
        if self.lease is not None:
            self.lease.release()


async def open_root(spec: SandboxSpec) -> BoxRoot:
    """Return the root file system that a spec names, after pulling its image where needed.

    Raises:
        ImageError: the image is neither on this node nor elsewhere, or could not be pulled.
    """
    if spec.image is None:
        return BoxRoot()
    if not is_digest(spec.image):
        return _folder_root(spec.image)
    lease = await asyncio.to_thread(default_cache().acquire, spec.image)
    return BoxRoot(lease.root, lease.about.config, lease)


def _folder_root(image: str) -> BoxRoot:
    return BoxRoot(Path(image).absolute(), ImageConfig())


def as_nobody() -> tuple[str, ...]:
    """Return the command before another one that gives up root; empty for any other user."""
    if os.geteuid() != 0:
        return ()
    return ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")


def staged(spec: SandboxSpec, root: BoxRoot) -> tuple[list[str], Path | None]:
    """Return the command before bubblewrap's, and where bubblewrap finds the image."""
    is_root = os.geteuid() == 0
    if root.folder is None or not (spec.writable or (is_root and root.lease is not None)):
        return [*as_nobody()], root.folder
    folder, stage = str(root.folder), stage_folder()
    own = ["unshare", *(["-m"] if is_root else ["-Urm"]), "--propagation", "private", "--"]
    if not spec.writable:
        return [*own, "/bin/sh", "-c", _BIND, "sh", str(stage), folder, *as_nobody()], stage
    disk_mb = spec.limits.disk_mb
    owner = f"-o {NOBODY} -g {NOBODY}" if is_root else ""
    extra = "" if is_root else ",userxattr"
    arguments = [str(stage), folder, str(disk_mb << 20), str(disk_mb * _INODES_PER_MB)]
    script = ["/bin/sh", "-c", _OVERLAY, "sh", *arguments, owner, extra]
    return [*own, *script, *as_nobody()], stage / "root"


def root_arguments(
    spec: SandboxSpec, root: BoxRoot, seen: Path | None, runtime: Path
) -> Iterator[str]:
    """Yield bubblewrap's arguments for the root, the system folders and `/etc`.

    Args:
        spec: contents and limits of the box.
        root: its root file system.
        seen: where bubblewrap finds the image.
        runtime: folder of `runtime.runtime_folder`.
    """
    own_etc = sorted(path.name for path in (runtime / "etc").iterdir())
    if root.folder is not None and spec.writable:
        yield from ("--bind", str(seen), "/")
    else:
        yield from ("--size", str(spec.limits.disk_mb << 20), "--tmpfs", "/")
        if root.folder is not None:
            yield from _read_only(root, Path(str(seen)), own_etc)
    if root.config.host:
        yield from _of_the_host(root.folder if spec.writable else None)
    for name in own_etc:
        yield from ("--ro-bind", str(runtime / "etc" / name), f"/etc/{name}")


def check_root(spec: SandboxSpec, root: BoxRoot, runtime: Path, own_paths: tuple[str, ...]) -> None:
    """Refuse an image with which a box cannot be made safely.

    Args:
        spec: contents and limits of the box.
        root: its root file system.
        runtime: folder of `runtime.runtime_folder`.
        own_paths: paths in every box at which something is mounted.

    Raises:
        SettingsError: a link of the image lies where a box has a folder or file of its own, or the
            image belongs to another user than that of the box.
    """
    if root.folder is None:
        return
    user = NOBODY if os.geteuid() == 0 else os.geteuid()
    if spec.writable and root.folder.stat().st_uid != user:
        raise SettingsError(
            f"sandbox: image {str(root.folder)!r} belongs to another user than its box; "
            "add it to the image cache, or leave out writable=True"
        )
    etc = tuple(f"/etc/{path.name}" for path in (runtime / "etc").iterdir())
    socket = (SOCKET_PATH,) if spec.socket is not None else ()
    host = ("/usr",) if root.config.host else ()
    for path in (*own_paths, *etc, *socket, *host, spec.workdir, *spec.mounts):
        _check_no_link(root.folder, path, writable=spec.writable)


def _check_no_link(tree: Path, path: str, *, writable: bool) -> None:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not writable and parts[:1] and parts[0] in _IN_MEMORY:
        return
    place = tree
    for part in parts:
        place = place / part
        try:
            mode = place.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_ISLNK(mode):
            inside = "/" + str(place.relative_to(tree))
            raise SettingsError(
                f"sandbox: {inside} is a link in the image, where a box needs {path}"
            )


def _read_only(root: BoxRoot, seen: Path, own_etc: list[str]) -> Iterator[str]:
    """Yield arguments for the top folders of an image, without those that every box has."""
    assert root.folder is not None
    left_out = {*_IN_MEMORY, *(("usr", *SYSTEM_FOLDERS) if root.config.host else ())}
    for path in sorted(root.folder.iterdir()):
        if path.name == "etc" and path.is_dir() and not path.is_symlink():
            for inner in sorted(path.iterdir()):
                if inner.name not in own_etc:
                    yield from _shown(inner, seen / "etc" / inner.name, f"/etc/{inner.name}")
        elif path.name not in left_out:
            yield from _shown(path, seen / path.name, f"/{path.name}")


def _shown(path: Path, seen: Path, inside: str) -> Iterator[str]:
    if path.is_symlink():
        yield from ("--symlink", os.readlink(path), inside)
    else:
        yield from ("--ro-bind", str(seen), inside)


def _of_the_host(written: Path | None) -> Iterator[str]:
    """Yield arguments for the host's `/usr` and what belongs to it.

    Args:
        written: tree that is the root already, whose own links stay.
    """
    yield from ("--ro-bind", "/usr", "/usr")
    for name in SYSTEM_FOLDERS:
        path = Path("/", name)
        if written is not None and os.path.lexists(written / name):
            continue
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for name in SYSTEM_ETC:
        yield from ("--ro-bind-try", name, name)
