"""Packages that some environments need, imported when an environment is made."""

from importlib import import_module
from types import ModuleType
from warnings import catch_warnings, simplefilter

from rollart_flow.errors import MissingExtraError


def optional_module(name: str, *, extra: str) -> ModuleType:
    """Import a module of an optional package, without the warnings of its source.

    Raises:
        MissingExtraError: names the extra of rollart-flow that installs the package.
    """
    try:
        with catch_warnings():
            simplefilter("ignore", SyntaxWarning)
            simplefilter("ignore", DeprecationWarning)
            return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{name} cannot be imported ({error}): pip install 'rollart-flow[{extra}]'"
        ) from error
