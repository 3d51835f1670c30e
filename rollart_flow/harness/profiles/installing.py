"""Installation of agents' programs from the registries of npm and pip.

Invariant: a folder with the mark of a version is complete; what fails leaves no folder.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollart_flow.errors import RollartError, SettingsError
from rollart_flow.harness.profiles.pins import Installer, Pin

AGENTS_VARIABLE = "ROLLART_AGENTS"
_MARK = "rollart.json"
_PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def agents_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of installed programs; it may not exist yet.

    It is ROLLART_AGENTS, or `rollart_flow/agents` in the user's data folder. Where this process is
    root it is in `/var/lib`, since boxes run as another user, who cannot enter root's home.
    """
    if folder := environ.get(AGENTS_VARIABLE):
        return Path(folder).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/rollart_flow/agents")
    base = environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "rollart_flow" / "agents"


def installed_version(folder: Path) -> str | None:
    """Return the version of the program in a folder; None without one that this Python can run."""
    try:
        mark = json.loads((folder / _MARK).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(mark, dict) or mark.get("python") not in (None, _PYTHON_VERSION):
        return None
    return str(mark.get("version"))


def install(pin: Pin, folder: Path) -> None:
    """Install a program in a folder, in place of what is there.

    Args:
        pin: the package and its version.
        folder: folder of this program alone.

    Raises:
        SettingsError: npm or pip is missing.
        RollartError: the installation failed, or the folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise RollartError(f"{folder.parent} cannot be written: {error.strerror}") from error
    try:
        _run(_command(pin, made), pin)
        mark = {"package": pin.name, "version": pin.version}
        if pin.installer is Installer.PIP:
            mark["python"] = _PYTHON_VERSION
        (made / _MARK).write_text(json.dumps(mark))
        made.chmod(0o755)  # boxes may run as another user
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def cpu() -> str:
    """Return the name of this machine's processor in names of npm packages."""
    return "arm64" if platform.machine() in ("aarch64", "arm64") else "x64"


def _command(pin: Pin, folder: Path) -> Sequence[str]:
    wanted = pin.wanted(cpu())
    if pin.installer is Installer.PIP:
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
        options = ("--quiet", "--no-warn-script-location", "--root-user-action", "ignore")
        return (*pip, "install", *options, "--target", str(folder), *wanted)
    if (npm := shutil.which("npm")) is None:
        raise SettingsError(f"{pin.name} is installed by npm, which is missing; install Node.js")
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")
    return (npm, "install", *options, "--prefix", str(folder), *wanted)


def _run(command: Sequence[str], pin: Pin) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise SettingsError(
            f"{pin.name} is installed by pip, which {sys.executable} lacks; "
            "run `python -m ensurepip` with it"
        )
    lines = [line.strip() for line in done.stderr.splitlines() if "error" in line.lower()]
    reason = next((line for line in lines if "code E" not in line), "it said nothing")
    raise RollartError(f"{pin.name}@{pin.version} could not be installed: {reason}")
