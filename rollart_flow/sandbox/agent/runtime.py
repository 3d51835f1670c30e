"""This Python, copied once to a folder that every box shows read-only.

The agent of a box runs on it whatever the box's own files are: an explicit loader starts the
interpreter with the libraries of this folder. Boxes without an image offer it to commands as
`python3`, with the standard library and no other package.

Invariants: the folder belongs to this user, is complete once it has its name, and never changes.
The copied loader cannot be read, so that the kernel shields the processes it starts: no command
looks into the agent of its own box.
"""

import hashlib
import os
import py_compile
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from rollart_flow.errors import SandboxError
from rollart_flow.sandbox.agent import agent

_LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo",
    "ensurepip", "lib2to3", "config-*", "*.a", "*.opt-?.pyc", "_tkinter*", "_test*",
)  # fmt: skip
_ETC = {
    "passwd": "root:x:0:0::/root:/bin/sh\nbox:x:1000:1000::/tmp:/bin/sh\n",
    "group": "root:x:0:\nbox:x:1000:\n",
    "hosts": "127.0.0.1 localhost box\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


@cache
def runtime_folder() -> Path:
    """Return the folder, made by the first call of a machine.

    It holds `loader`, `lib` (libraries of the interpreter and its modules), `python` (the
    interpreter and its standard library), `etc` and `agent.pyc`. Its place is `/var/tmp`, which any
    user may enter, since boxes run as another user where this process is root.

    Raises:
        SandboxError: the folder of that name belongs to somebody else, or cannot be written.
    """
    return _own_folder(f"rollart-box-{os.geteuid()}-{_digest()}", _make)


@cache
def stage_folder() -> Path:
    """Return an empty folder at which each copy-on-write box mounts its root, out of its own sight.

    Raises:
        SandboxError: the folder of that name belongs to somebody else, or cannot be written.
    """
    return _own_folder(f"rollart-stage-{os.geteuid()}", _make_empty)


def _own_folder(name: str, make: Callable[[Path], None]) -> Path:
    folder = Path("/var/tmp") / name
    try:
        if not folder.exists():
            make(folder)
        about = folder.lstat()
    except (OSError, subprocess.CalledProcessError) as error:
        raise SandboxError(f"{folder}: the files of a sandbox cannot be made: {error}") from error
    if about.st_uid != os.geteuid() or not stat.S_ISDIR(about.st_mode) or about.st_mode & 0o022:
        raise SandboxError(f"{folder} belongs to another user; remove it")
    return folder


def _digest() -> str:
    parts = (
        sys.version,
        sys.base_prefix,
        Path(agent.__file__).read_text(),
        Path(__file__).read_text(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _make_empty(folder: Path) -> None:
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)


def _make(folder: Path) -> None:
    """Fill a folder beside the wanted one and give it its name at the end."""
    made = Path(tempfile.mkdtemp(prefix=folder.name + "-", dir=folder.parent))
    try:
        _fill(made)
        made.chmod(0o755)
        made.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _fill(made: Path) -> None:
    interpreter = Path(sys.base_prefix) / "bin" / VERSION
    if not interpreter.exists():
        interpreter = Path(os.path.realpath(sys.executable))
    standard = Path(sysconfig.get_path("stdlib"))
    python = made / "python"
    shutil.copytree(standard, python / "lib" / VERSION, ignore=_LEFT_OUT, symlinks=False)
    (python / "bin").mkdir()
    shutil.copy(interpreter, python / "bin" / VERSION)
    (python / "bin" / "python3").symlink_to(VERSION)
    (python / "bin" / "python").symlink_to(VERSION)
    libraries = _libraries(interpreter, *(python / "lib" / VERSION / "lib-dynload").glob("*.so"))
    (made / "lib").mkdir()
    for name, path in libraries.items():
        shutil.copy(path, made / "lib" / name)
    shutil.copy(_loader(interpreter), made / "loader")
    _make_readable(made)
    (made / "loader").chmod(0o111)
    py_compile.compile(
        agent.__file__,
        str(made / "agent.pyc"),
        dfile="agent.py",
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    (made / "etc").mkdir()
    for name, text in _ETC.items():
        (made / "etc" / name).write_text(text)


def _make_readable(folder: Path) -> None:
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _libraries(*files: Path) -> dict[str, Path]:
    """Return the shared libraries that the files need, by the name they ask for."""
    found = {}
    for line in _ldd(*files):
        if match := re.match(r"\s+(\S+) => (/\S+)", line):
            found[match[1]] = Path(match[2])
    return found


def _loader(interpreter: Path) -> Path:
    """Return the dynamic loader that the interpreter names."""
    for line in _ldd(interpreter):
        if match := re.match(r"\s+(/\S*/ld-\S+)", line):
            return Path(match[1])
    raise SandboxError(f"{interpreter}: the loader of this Python is not found with ldd")


def _ldd(*files: Path) -> list[str]:
    done = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()
