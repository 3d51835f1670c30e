"""The SDKs of the providers, each imported when a test first uses it.

Their imports take seconds, and every process of pytest collects every module of tests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any


class LaterImport:
    """A module that is imported when an attribute of it is asked for.

    Attributes that begin with an underscore are not: pytest looks for some in all that it collects.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    import anthropic as anthropic
    import openai as openai
    from google import genai as genai
    from google.genai import errors as errors
    from google.genai import types as types
else:
    anthropic = LaterImport("anthropic")
    openai = LaterImport("openai")
    genai = LaterImport("google.genai")
    errors = LaterImport("google.genai.errors")
    types = LaterImport("google.genai.types")
