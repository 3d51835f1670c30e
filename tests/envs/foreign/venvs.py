"""Virtual environments with packages that do not install beside this library, and their servers.

They are made once, in the cache folder of the user; that takes a package registry and minutes.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVERS = Path(__file__).parent / "servers"
SERVER_START_S = 180.0


def venv(*packages: str, base: str = sys.executable) -> Path:
    """The interpreter of a virtual environment with packages; skips the test if it cannot be."""
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    name = "-".join(package.replace("==", "-") for package in packages)
    folder = caches / "rollart_flow" / f"environments-{name}"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        for command in (
            [base, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", *packages],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                last = (done.stderr or done.stdout).strip().splitlines()[-1:]
                pytest.skip(f"no virtual environment with {name}: {' '.join(last)}")
        ready.touch()
    return python


def newer_python() -> str:
    """An interpreter of Python 3.12 or newer; skips the test if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [shutil.which("python3.12"), *map(str, sorted(pyenv.glob("3.12*/bin/python")))]
    for place in places:
        if place and not subprocess.run([place, "-c", ""], capture_output=True).returncode:
            return place
    pytest.skip("there is no interpreter of Python 3.12")


@contextmanager
def served(python: Path, script: str, *arguments: str) -> Iterator[int]:
    """The port of a server of an interpreter; it ends with the context."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    command = [str(python), str(SERVERS / script), *arguments, str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _wait(process, port)
            yield port
        finally:
            process.kill()


def _wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    until = time.monotonic() + SERVER_START_S
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as line:
            line.settimeout(1.0)
            if line.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)  # it has no other way to say that it listens
    raise AssertionError(f"the server on port {port} did not start")
