"""Interpreters of virtual environments, for packages that do not install beside this library."""

from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from rollart_flow.errors import SettingsError

_HERE = Path(__file__).parent


def check_python(python: str, package: str, where: str) -> None:
    """Refuse a setting that names no interpreter; whether it exists, only its machine knows.

    Raises:
        SettingsError: tells how to make the virtual environment.
    """
    if not python:
        raise SettingsError(
            f'{where}: python is not set; make a virtual environment with "python -m venv FOLDER" '
            f'and "FOLDER/bin/pip install {package}", and set python="FOLDER/bin/python"'
        )


def interpreter(python: str) -> str:
    """Return the path of an interpreter.

    Raises:
        SettingsError: this machine has none at the path.
    """
    path = Path(python).expanduser().absolute()  # not resolved: its place finds its packages
    if not path.is_file():
        raise SettingsError(f"python {python!r} does not exist on this machine")
    return str(path)


def handler(file: str, name: str) -> str:
    """Return the handler that a file of this folder defines, for `EnvironmentProgram`."""
    return f"{_HERE / file}:{name}"


@cache
def installed(python: str, package: str) -> str:
    """Return the version of a package of a virtual environment; "unknown" if it is not found."""
    root = Path(python).expanduser().absolute().parent.parent
    for folder in sorted(root.glob("lib/python3*/site-packages")):
        for found in distributions(name=package, path=[str(folder)]):
            return found.version
    return "unknown"
