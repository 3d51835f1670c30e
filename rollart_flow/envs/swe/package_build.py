"""The build of a source archive's package, for packages that read what only a build makes.

Such are the metadata of the distribution (`importlib.metadata.version`) and modules that the build
backend writes, such as `_version.py`. What the backend requires is fetched where the network is,
once, as wheels; the backend then runs in a box without network, and what it made is added to the
files of the package. Invariant: no code of the package or of a backend runs outside of a box.
"""

import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart_flow.envs.swe.file_tree import FileTree, TreeFile, is_kept_path, pack_tar
from rollart_flow.errors import SandboxFileError, SettingsError
from rollart_flow.sandbox.base import SandboxSnapshot, SandboxSpec
from rollart_flow.text import one_line

if TYPE_CHECKING:
    from rollart_flow.sandbox.boxes import Boxes

_FETCH_S, _BUILD_S = 600.0, 300.0
_WHEELS, _OUT = "/tmp/rollart-wheels", "/tmp/rollart-built"
_MOST_BYTES = 64 << 20
_OLD_BACKEND = {"requires": ["setuptools"], "build-backend": "setuptools.build_meta"}
"""Build system of a package that names none (PEP 517)."""
_BUILD = """
import glob, importlib, os, sys, zipfile
wheels, out, backend, *places = sys.argv[1:]
for wheel in glob.glob(wheels + "/*.whl"):
    zipfile.ZipFile(wheel).extractall("/tmp/rollart-backend")
sys.path[:0] = [*map(os.path.abspath, places), "/tmp/rollart-backend"]
os.environ["PYTHONPATH"] = "/tmp/rollart-backend"
os.makedirs(out)
module, _, inner = backend.partition(":")
found = importlib.import_module(module)
for name in filter(None, inner.split(".")):
    found = getattr(found, name)
os.rename(os.path.join(out, found.build_wheel(out)), out + "/package.zip")
"""


def build_system(tree: FileTree) -> Mapping[str, Any]:
    """Return the table `build-system` of a package, or what stands for a missing one.

    Raises:
        SettingsError: the file `pyproject.toml` cannot be read.
    """
    if "pyproject.toml" not in tree:
        return _OLD_BACKEND
    try:
        found = tomllib.loads(tree["pyproject.toml"].data.decode()).get("build-system")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"pyproject.toml cannot be read: {one_line(str(error))}") from error
    return found if isinstance(found, dict) and "build-backend" in found else _OLD_BACKEND


def fetched(requirements: Sequence[str], folder: Path) -> Path:
    """Return a folder with wheels of requirements and of what they require; fetch it once.

    Args:
        requirements: as in `build-system.requires`.
        folder: keeps such folders, by the digest of the requirements and of this Python.

    Raises:
        SettingsError: pip is missing or cannot fetch them as wheels.
    """
    about = "\n".join((sys.version, *sorted(requirements)))
    place = folder / hashlib.sha256(about.encode()).hexdigest()[:16]
    if place.exists():
        return place
    folder.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
    try:
        try:
            done = subprocess.run(
                [*command, "--dest", str(made), "--", *requirements],
                capture_output=True, text=True, timeout=_FETCH_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SettingsError(f"pip cannot be run: {one_line(str(error))}") from error
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            said = lines[-1] if lines else done.stderr.strip() or "it failed"
            raise SettingsError(
                f"what the build requires, {', '.join(requirements)}, cannot be fetched: "
                f"{one_line(said)}"
            )
        made.chmod(0o755)
        try:
            made.rename(place)
        except OSError:
            if not place.exists():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return place


def with_build(
    tree: FileTree, boxes: "Boxes", spec: SandboxSpec, folder: Path
) -> dict[str, TreeFile]:
    """Return the files of a package with what its build makes beside them.

    Args:
        tree: files of a source archive.
        boxes: source of the box in which the backend runs.
        spec: the box of `verifier.box_spec`.
        folder: keeps what backends require, as for `fetched`.

    Raises:
        SettingsError: the requirements cannot be fetched, or the build fails.
        SandboxError: the box could not be started, or has ended.
    """
    system = build_system(tree)
    wheels = fetched(tuple(map(str, system.get("requires", ()))), folder)
    box = boxes.open(spec, snapshot=SandboxSnapshot(spec, pack_tar(tree)))
    places = map(str, system.get("backend-path", ()))
    command = ["python3", "-c", _BUILD, _WHEELS, _OUT, str(system["build-backend"]), *places]
    try:
        box.upload(wheels, _WHEELS)  # a box sees no folder of its user
        done = box.exec(command, timeout_s=_BUILD_S)
        if done.exit_code != 0:
            said = (done.stderr.strip().splitlines() or ["it was killed"])[-1]
            raise SettingsError(f"the build by {system['build-backend']} failed: {one_line(said)}")
        try:
            archive = box.read(f"{_OUT}/package.zip", max_bytes=_MOST_BYTES)
        except SandboxFileError as error:
            raise SettingsError(f"the build left no wheel: {error}") from error
    finally:
        box.close()
    return {**tree, **_made(tree, archive)}


def _made(tree: FileTree, archive: bytes) -> dict[str, TreeFile]:
    """Return the files of a wheel that the sources lack, where tests import the package from."""
    root = "src/" if any(path.startswith("src/") and path.endswith(".py") for path in tree) else ""
    found: dict[str, TreeFile] = {}
    size = 0
    with zipfile.ZipFile(io.BytesIO(archive)) as wheel:
        for entry in wheel.infolist():
            folder, _, name = entry.filename.partition("/")
            path = f"{root}{entry.filename}"
            about = folder.endswith(".dist-info")
            if entry.is_dir() or path in tree or entry.filename in tree or not is_kept_path(path):
                continue
            if about and name == "entry_points.txt":  # no plugin is loaded by itself
                continue
            if not about and not path.endswith((".py", ".pyi", ".typed")):
                continue
            if (size := size + entry.file_size) > _MOST_BYTES:
                raise SettingsError(f"the build makes more than {_MOST_BYTES >> 20} MiB of files")
            found[path] = TreeFile(wheel.read(entry))
    return found
