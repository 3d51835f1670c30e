"""Packages that need a build: their backend is fetched as a wheel and runs in a box."""

import zipfile
from pathlib import Path

import pytest

from rollart_flow.envs.swe.package_build import build_system, fetched, with_build
from rollart_flow.envs.swe.verifier import box_spec, run_tests
from rollart_flow.errors import SettingsError
from rollart_flow.sandbox.boxes import LocalBoxes
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from tests.envs.swe.tiny import SPEC_LIMITS, tree_of

in_a_box = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())

BACKEND = """
import socket, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=0.1)
        raise SystemExit("there is a network")
    except OSError:
        pass
    name = "marks-2.5-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("marks/__init__.py", "raise ValueError")
        wheel.writestr("marks/_version.py", "number = 25\\n")
        wheel.writestr("marks-2.5.dist-info/METADATA", "Name: marks\\nVersion: 2.5\\n")
        wheel.writestr("marks-2.5.dist-info/entry_points.txt", "[pytest11]\\nx = marks\\n")
        wheel.writestr("../outside.py", "")
    return name
"""
PROJECT = '[build-system]\nrequires = ["tiny-backend==1"]\nbuild-backend = "tiny_backend"\n'
PACKAGE = {
    "pyproject.toml": PROJECT,
    "marks/__init__.py": "from marks._version import number\n",
    "tests/test_marks.py": """
from importlib.metadata import version
from marks import number

def test_the_version_is_known():
    assert (version("marks"), number) == ("2.5", 25)
""",
}
TEST = "tests/test_marks.py::test_the_version_is_known"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows, with the wheel of a backend."""
    folder = tmp_path / "registry"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_backend-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_backend.py", BACKEND)
        about = "Metadata-Version: 2.1\nName: tiny-backend\nVersion: 1\n"
        wheel.writestr("tiny_backend-1.dist-info/METADATA", about)
        wheel.writestr("tiny_backend-1.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        wheel.writestr("tiny_backend-1.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@in_a_box
def test_a_package_finds_its_metadata_and_the_modules_that_its_build_writes(
    registry: Path, tmp_path: Path
) -> None:
    spec, tree = box_spec(SPEC_LIMITS), tree_of(PACKAGE)
    built = with_build(tree, LocalBoxes(), spec, tmp_path / "wheels")
    assert sorted(built.keys() - tree.keys()) == [
        "marks-2.5.dist-info/METADATA",
        "marks/_version.py",
    ]
    assert built["marks/__init__.py"] == tree["marks/__init__.py"]
    run = run_tests(LocalBoxes(), spec, built, ["tests/test_marks.py"], 60)
    assert run.tests[TEST].passed
    assert TEST not in run_tests(LocalBoxes(), spec, tree, ["tests/test_marks.py"], 60).tests


@in_a_box
def test_a_build_that_fails_says_why_in_one_line(registry: Path, tmp_path: Path) -> None:
    tree = tree_of({**PACKAGE, "pyproject.toml": PROJECT.replace('"tiny_backend"', '"no_backend"')})
    with pytest.raises(SettingsError, match="by no_backend failed: ModuleNotFoundError") as raised:
        with_build(tree, LocalBoxes(), box_spec(SPEC_LIMITS), tmp_path / "wheels")
    assert "\n" not in str(raised.value)


def test_wheels_are_fetched_once_and_what_is_nowhere_is_named(
    registry: Path, tmp_path: Path
) -> None:
    place = fetched(["tiny-backend"], tmp_path / "wheels")
    assert [path.name for path in place.iterdir()] == ["tiny_backend-1-py3-none-any.whl"]
    (registry / "tiny_backend-1-py3-none-any.whl").unlink()
    assert fetched(["tiny-backend"], tmp_path / "wheels") == place
    with pytest.raises(SettingsError, match="requires, nowhere, cannot be fetched: ERROR: "):
        fetched(["nowhere"], tmp_path / "wheels")
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == [place.name]


def test_a_package_that_names_no_backend_has_that_of_setuptools() -> None:
    assert build_system({})["build-backend"] == "setuptools.build_meta"
    with pytest.raises(SettingsError, match=r"pyproject\.toml cannot be read"):
        build_system(tree_of({"pyproject.toml": "["}))
