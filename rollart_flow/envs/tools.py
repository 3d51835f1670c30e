"""Tools as typed Python methods, and the environment whose actions are calls of them."""

import functools
import inspect
import json
import re
from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

from rollart_flow.envs.base import Environment, Info
from rollart_flow.errors import SettingsError
from rollart_flow.text import one_line
from rollart_flow.types import Action, Image, Message, Tool, ToolCall
from rollart_flow.types.branching import StepObservation
from rollart_flow.types.messages import tool_result

F = TypeVar("F", bound=Callable[..., object])

_MARK = "__rollart_tool__"
_ARGUMENT = re.compile(r"^\s*(\w+)(?: \([^)]*\))?: (.*)$")


def tool(function: F) -> F:
    """Mark a method of a `ToolEnvironment` as a tool.

    Its name, its docstring and its annotations become the tool's name, description and JSON Schema.
    Arguments are described in the section `Args:` of the docstring, or by `Annotated` with the
    `Field` of pydantic. What it returns is the tool's answer if it is text or an `Image`, or is
    converted to JSON.
    """
    setattr(function, _MARK, True)
    return function


def described(function: Callable[..., object]) -> Tool:
    """Return a typed function as a tool.

    Raises:
        SettingsError: it has no docstring, or an argument whose type has no JSON Schema.
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    name = getattr(function, "__name__", repr(function))
    documented = inspect.getdoc(function)
    if not documented:
        raise SettingsError(f"tool {name!r} has no docstring, which tells the model what it does")
    try:
        adapter: TypeAdapter[object] = TypeAdapter(function)  # type: ignore[arg-type]  # documented
        schema = adapter.json_schema()
    except (PydanticUserError, NameError) as error:
        raise SettingsError(f"tool {name!r} has no JSON Schema: {one_line(error)}") from error
    text, _, arguments = documented.partition("\nArgs:\n")
    said = {
        found[1]: found[2]
        for line in arguments.splitlines()
        if (found := _ARGUMENT.match(line)) is not None
    }
    for argument, properties in schema.get("properties", {}).items():
        properties.pop("title", None)
        if argument in said:
            properties.setdefault("description", said[argument])
    return Tool(name, " ".join(text.split()), schema)


class ToolEnvironment(Environment):
    """An environment whose tools are its methods with `@tool`.

    An action with tool calls runs them in order, and the policy gets their answers; what a tool
    raises is the text of its answer. An action without calls goes to `answer`.
    """

    converses = True

    @functools.cached_property
    def tools(self) -> tuple[Tool, ...]:  # type: ignore[override]  # computed once it is asked for
        """The methods with `@tool`, in the order of their definition."""
        return tuple(described(getattr(self, name)) for name in _marked(type(self)))

    @abstractmethod
    def answer(self, text: str) -> tuple[StepObservation, float, bool, bool, Info]:
        """Apply an action without tool calls; return what `step` returns."""

    def step(self, action: Action) -> tuple[StepObservation, float, bool, bool, Info]:
        """Run the calls of an action, or pass its text to `answer`."""
        if not action.tool_calls:
            return self.answer(action.text)
        return [self._called(call) for call in action.tool_calls], 0.0, False, False, {}

    def _called(self, call: ToolCall) -> Message:
        from pydantic import TypeAdapter
        from pydantic_core import ArgsKwargs

        try:
            arguments = ArgsKwargs((), dict(call.arguments))
            found = TypeAdapter(getattr(self, call.name)).validate_python(arguments)
            plain = isinstance(found, str | Image)
            part = found if plain else json.dumps(found, ensure_ascii=False)
        except Exception as error:  # noqa: BLE001  a tool may raise anything: the model reads it
            part = f"error: {type(error).__name__}: {one_line(error)}"
        return tool_result(call, part)


def _marked(kind: type[Environment]) -> list[str]:
    found: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        found |= {name: None for name, value in vars(base).items() if hasattr(value, _MARK)}
    return list(found)
