"""Docker and Podman for tests, with stores of their own that leave nothing on the machine."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_END_S = 60


@contextmanager
def docker() -> Iterator[str]:
    """Yield why there is no Docker, empty if DOCKER_HOST names a daemon that was started."""
    for program in ("docker", "dockerd", "runc"):
        if shutil.which(program) is None:
            yield f"{program} is not installed"
            return
    if os.geteuid() != 0:
        yield "only root can start dockerd"
        return
    folder = Path(tempfile.mkdtemp(prefix="rollart-docker-", dir="/var/tmp"))
    address = f"unix://{folder}/docker.sock"
    with open(folder / "log", "wb") as log, subprocess.Popen(
        [
            "setpriv", "--pdeathsig", "TERM",  # it ends with tests that are killed
            "dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none",
            "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"),
            "--pidfile", str(folder / "pid"), "--host", address,
        ],
        stdout=log, stderr=log, start_new_session=True,
    ) as daemon:  # fmt: skip
        try:
            with variable("DOCKER_HOST", address):
                if _answers(daemon):
                    folder.chmod(0o711)
                    (folder / "docker.sock").chmod(0o666)  # some tests are another user
                    yield ""
                else:
                    yield f"dockerd does not start: {_last(folder / 'log')}"
        finally:
            daemon.send_signal(signal.SIGTERM)  # it ends its containerd too
            try:
                daemon.wait(_END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()  # the kernel ends its containerd
                daemon.wait()
                subprocess.run(["umount", "--quiet", "--lazy", str(folder / "data")], check=False)
            shutil.rmtree(folder)


@contextmanager
def podman() -> Iterator[str]:
    """Yield why there is no Podman, empty if its settings name a store of the test's own."""
    if shutil.which("podman") is None:
        yield "podman is not installed"
        return
    folder = Path(tempfile.mkdtemp(prefix="rollart-podman-", dir="/var/tmp"))
    storage = {"driver": "overlay" if os.geteuid() == 0 else "vfs", "graphroot": "data"}
    places = {"graphroot": str(folder / storage["graphroot"]), "runroot": str(folder / "run")}
    lines = [f"{name} = {json.dumps(value)}" for name, value in {**storage, **places}.items()]
    (folder / "storage.conf").write_text("\n".join(["[storage]", *lines, ""]))
    runtime = next(filter(shutil.which, ("runc", "crun")), "crun")
    (folder / "containers.conf").write_text(f'[engine]\nruntime = "{runtime}"\n')
    try:
        with (
            variable("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf")),
            variable("CONTAINERS_CONF", str(folder / "containers.conf")),
        ):
            try:
                yield ""
            finally:
                remove = ["podman", "rm", "--all", "--force", "--time", "0"]
                subprocess.run(remove, capture_output=True, check=False)
    finally:
        mounted = ["umount", "--quiet", str(folder / "data" / "overlay")]
        subprocess.run(mounted, capture_output=True, check=False)
        shutil.rmtree(folder)


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of this process, and restore it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _answers(daemon: subprocess.Popen[bytes]) -> bool:
    """Wait until the daemon answers; False if it ends first."""
    while daemon.poll() is None:
        done = subprocess.run(["docker", "ps", "--quiet"], capture_output=True, check=False)
        if done.returncode == 0:
            return True
    return False


def _last(log: Path) -> str:
    return (log.read_text().splitlines() or ["it says nothing"])[-1]
