"""The command line that starts a box.

The recipe: every namespace of its own, no further user namespaces, no capability, no variable of
the host, a root file system in memory with a bounded size, and everything of the host read-only. A
process of root starts the box as `nobody`, so that files which only root may read stay unreadable.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from rollart_flow.errors import SettingsError
from rollart_flow.sandbox.agent.runtime import VERSION
from rollart_flow.sandbox.base import SOCKET_PATH, SandboxSpec
from rollart_flow.sandbox.bubblewrap.roots import BoxRoot, root_arguments, staged
from rollart_flow.sandbox.images.digest import is_digest

RUNTIME_PATH = "/run/rollart"
"""Path at which a box sees the folder of `runtime`."""
OWN_PATHS = ("/proc", "/dev", "/tmp", RUNTIME_PATH)
"""Paths at which every box has something of its own."""
_USER = "1000"


def command_line(
    spec: SandboxSpec,
    root: BoxRoot,
    runtime: Path,
    *,
    agent_fd: int,
    status_fd: int,
    seccomp_fd: int | None,
    process_mb: int,
) -> list[str]:
    """Return the command that starts the agent of a box.

    Args:
        spec: contents and limits of the box.
        root: its root file system.
        runtime: folder of `runtime.runtime_folder`.
        agent_fd: descriptor of the agent's socket.
        status_fd: descriptor to which bubblewrap writes the agent's process id as JSON.
        seccomp_fd: descriptor that holds the system call filter; None means no filter.
        process_mb: memory of one process [MiB]; 0 if a control group bounds all of them.
    """
    limits = spec.limits
    filters = () if seccomp_fd is None else ("--seccomp", str(seccomp_fd))
    before, seen = staged(spec, root)
    return [
        *before,
        "bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL",
        "--new-session", "--as-pid-1", "--clearenv", "--hostname", "box",
        "--uid", _USER, "--gid", _USER, *filters,
        "--json-status-fd", str(status_fd),
        *root_arguments(spec, root, seen, runtime),
        "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev",
        "--size", str(limits.disk_mb << 20), "--tmpfs", "/dev/shm",
        "--perms", "1777", "--dir", "/tmp", "--dir", spec.workdir,
        "--ro-bind", str(runtime), RUNTIME_PATH,
        *_mounts(spec),
        "--chdir", "/",
        "--", f"{RUNTIME_PATH}/loader", "--library-path", f"{RUNTIME_PATH}/lib",
        f"{RUNTIME_PATH}/python/bin/{VERSION}", "-I", "-S", "-B", f"{RUNTIME_PATH}/agent.pyc",
        str(agent_fd), str(limits.processes), str(process_mb << 20), str(limits.lifetime_s),
    ]  # fmt: skip


def box_environ(
    spec: SandboxSpec, image_env: Mapping[str, str] | None = None, *, host: bool = False
) -> dict[str, str]:
    """Return the variables that commands of a box have, those of its image among them.

    Args:
        spec: contents and limits of the box.
        image_env: variables of its image.
        host: whether the image has `/usr` and Python of the host, as a box without one.
    """
    path = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
    known = {"HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": "/tmp", "PATH": path}
    if spec.image is None or host:
        known["PATH"] = f"{RUNTIME_PATH}/python/bin:{path}"
        known["LD_LIBRARY_PATH"] = f"{RUNTIME_PATH}/lib"
    return {**known, **(image_env or {}), **spec.env}


def check_spec(spec: SandboxSpec) -> None:
    """Refuse a spec whose paths are wrong or missing on this host.

    Raises:
        SettingsError: names the path.
    """
    for path in (spec.workdir, *spec.mounts):
        if not path.startswith("/") or ".." in Path(path).parts:
            raise SettingsError(f"sandbox: {path!r} is no absolute path of a box")
    if spec.image is None and spec.writable:
        raise SettingsError(
            "sandbox: writable=True needs an image; /usr of the host stays as it is"
        )
    for path in spec.mounts.values():
        if not Path(path).exists():
            raise SettingsError(f"sandbox: {path!r} does not exist and cannot be mounted")
    if spec.socket is not None and not Path(spec.socket).is_socket():
        raise SettingsError(f"sandbox: {spec.socket!r} is no Unix socket")
    names = [name for name in spec.env if not name or "=" in name or "\0" in name]
    if names:
        raise SettingsError(f"sandbox: {names[0]!r} is no name of an environment variable")


def check_folder(spec: SandboxSpec) -> None:
    """Refuse an image that is neither a folder nor one of the image cache.

    Raises:
        SettingsError: names the image.
    """
    if spec.image is not None and not is_digest(spec.image) and not Path(spec.image).is_dir():
        raise SettingsError(
            f"sandbox: image {spec.image!r} is no folder with a root file system, and no "
            "sha256:... of the image cache"
        )


def _mounts(spec: SandboxSpec) -> Iterator[str]:
    for inside, outside in spec.mounts.items():
        yield from ("--ro-bind", outside, inside)
    if spec.socket is not None:
        yield from ("--ro-bind", spec.socket, SOCKET_PATH)
