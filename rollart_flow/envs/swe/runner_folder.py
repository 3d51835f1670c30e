"""A folder with pytest and `box_runner`, which boxes for tests show read-only.

A box shows this Python's standard library and no package. The folder holds the installed files of
pytest, of further distributions that tests need, and of what they require; their entry points and
metadata are left out, so that no plugin is loaded by itself.

Invariants: the folder belongs to this user, is complete once it has its name, and never changes.
"""

import hashlib
import os
import re
import shutil
import stat
import tempfile
from compileall import compile_dir
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from py_compile import PycInvalidationMode

from rollart_flow.envs.swe import box_runner
from rollart_flow.errors import SandboxError, SettingsError
from rollart_flow.registry import Requirement

RUNNER_PATH = "/opt/rollart-tests"
"""Path at which a box sees the folder."""
PYTEST = Requirement("pytest", ("pytest",), "swe")
"""The package that runs the tests of SWE tasks."""
_NAME = re.compile(r"^[A-Za-z0-9._-]+")


@cache
def runner_folder(packages: tuple[str, ...] = ()) -> Path:
    """Return the folder, made by the first call of a machine.

    Args:
        packages: installed distributions that tests need beside pytest.

    Raises:
        SettingsError: a distribution is not installed.
        SandboxError: the folder of that name belongs to somebody else, or cannot be written.
    """
    found = _closure(("pytest", *packages))
    folder = Path("/var/tmp") / f"rollart-tests-{os.geteuid()}-{_digest(found)[:16]}"
    try:
        if not folder.exists():
            _make(folder, found)
        about = folder.lstat()
    except OSError as error:
        raise SandboxError(f"{folder}: the files for tests cannot be made: {error}") from error
    if about.st_uid != os.geteuid() or not stat.S_ISDIR(about.st_mode) or about.st_mode & 0o022:
        raise SandboxError(f"{folder} belongs to another user; remove it")
    return folder


def runner_digest(packages: tuple[str, ...] = ()) -> str:
    """Return the digest of what runs tests: the runner, and the versions of the packages."""
    return _digest(_closure(("pytest", *packages)))


def _digest(found: dict[str, Distribution]) -> str:
    versions = sorted(f"{name}=={about.version}" for name, about in found.items())
    sources = (Path(box_runner.__file__).read_text(), Path(__file__).read_text())
    return hashlib.sha256("\0".join((*versions, *sources)).encode()).hexdigest()


def _closure(names: tuple[str, ...]) -> dict[str, Distribution]:
    """Return the distributions with all that they require here."""
    from packaging.requirements import Requirement as Required

    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found:
            continue
        try:
            found[key] = distribution(name)
        except PackageNotFoundError:
            raise SettingsError(_missing(name)) from None
        required = [Required(line) for line in found[key].requires or ()]
        waiting += [
            r.name for r in required if r.marker is None or r.marker.evaluate({"extra": ""})
        ]
    return found


def _missing(name: str) -> str:
    if name == "pytest":
        return f"SWE tasks run tests with pytest; install rollart-flow[{PYTEST.extra}]"
    return f"SWE tasks: the distribution {name!r} is not installed, and tests cannot use it"


def _make(folder: Path, found: dict[str, Distribution]) -> None:
    """Fill a folder beside the wanted one and give it its name at the end."""
    made = Path(tempfile.mkdtemp(prefix=folder.name + "-", dir=folder.parent))
    try:
        for about in found.values():
            _copy(about, made / "site")
        shutil.copy(box_runner.__file__, made / "box_runner.py")
        mode = PycInvalidationMode.UNCHECKED_HASH
        compile_dir(made, quiet=2, invalidation_mode=mode, stripdir=made, prependdir=RUNNER_PATH)
        for path in made.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        made.chmod(0o755)
        made.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _copy(about: Distribution, site: Path) -> None:
    for file in about.files or ():
        top = file.parts[0]
        if ".." in file.parts or top.endswith((".dist-info", ".egg-info")) or file.suffix == ".pth":
            continue
        if "__pycache__" in file.parts:
            continue
        target = site.joinpath(*file.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(file.locate()), target)
