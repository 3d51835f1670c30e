"""Tools as typed Python methods, and the environment whose actions are calls of them."""

import functools
import inspect
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from rollart_flow.envs.base import Environment, Info
from rollart_flow.errors import SettingsError
from rollart_flow.text import one_line
from rollart_flow.types import Action, Image, Message, Tool, ToolCall
from rollart_flow.types.branching import Return, StepObservation, SubAgent
from rollart_flow.types.messages import tool_result

if TYPE_CHECKING:
    from pydantic import TypeAdapter

V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., object])

_MARK = "__rollart_tool__"
_ARGUMENT = re.compile(r"^\s*(\w+)(?: \([^)]*\))?: (.*)$")


def tool(function: F) -> F:
    """Mark a method of a `ToolEnvironment` as a tool.

    Its name, its docstring and its annotations become the tool's name, description and JSON Schema.
    Arguments are described in the section `Args:` of the docstring, or by `Annotated` with the
    `Field` of pydantic. What it returns is the tool's answer if it is text or an `Image`, or is
    converted to JSON.

    A tool may run a sub-agent: it is a generator that yields a `SubAgent`, gets each `Action` of
    that branch without tool calls, may yield further observations for it, and returns its answer.
    A `SubAgent` that it yields later takes the place of the one before. Calls of the sub-agent run
    the environment's tools of these names.
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
    raises is the text of its answer. An action without calls goes to the tool whose sub-agent
    acts, or else to `answer`.
    """

    converses = True

    @functools.cached_property
    def tools(self) -> tuple[Tool, ...]:  # type: ignore[override]  # computed once it is asked for
        """The methods with `@tool`, in the order of their definition."""
        kind = type(self)
        found = _DESCRIBED.get(kind)
        if found is None:
            found = tuple(described(getattr(self, name)) for name in _marked(kind))
            _DESCRIBED[kind] = found
        return found

    @abstractmethod
    def answer(self, text: str) -> tuple[StepObservation, float, bool, bool, Info]:
        """Apply an action without tool calls; return what `step` returns."""

    def step(self, action: Action) -> tuple[StepObservation, float, bool, bool, Info]:
        """Run the calls of an action, or pass its text to `answer`."""
        if action.tool_calls:
            shown = self._run(_CallQueue(action.tool_calls, []))
        elif self._agents:
            shown = self._advance(self._agents.pop(), action)
        else:
            return self.answer(action.text)
        return shown, 0.0, False, False, {}

    @functools.cached_property
    def _agents(self) -> "list[_Agent]":
        """Tools whose sub-agents act; the last one's acts now."""
        return []

    def _run(self, calls: "_CallQueue") -> StepObservation:
        """Return the answers of calls, or the sub-agent that one of them begins."""
        for place, call in enumerate(calls.left):
            found = self._called(call)
            if isinstance(found, Generator):
                rest = _CallQueue(calls.left[place + 1 :], calls.answers)
                return self._advance(_Agent(call, found, rest), None)
            calls.answers.append(tool_result(call, found))
        return tuple(calls.answers)

    def _advance(self, agent: "_Agent", action: Action | None) -> StepObservation:
        """Give a tool the action of its sub-agent; None begins the tool.

        Returns what the branch of the sub-agent sees, or, before it has begun, that of the call.
        """
        try:
            shown: StepObservation = agent.tool.send(action)
            if action is None and not isinstance(shown, SubAgent):
                agent.tool.close()
                raise TypeError("a tool that yields must yield a SubAgent first")
        except StopIteration as ended:
            returned = ended.value
            answer = _guarded(lambda: _part(returned))
        except Exception as error:  # noqa: BLE001  a tool may raise anything: the model reads it
            answer = _told(error)
        else:
            self._agents.append(agent)
            begins = action is not None and isinstance(shown, SubAgent)
            return Return(shown) if begins else shown
        agent.calls.answers.append(tool_result(agent.call, answer))
        after = self._run(agent.calls)
        return after if action is None else Return(after)

    def _called(self, call: ToolCall) -> "str | Image | Generator[Any, Any, Any]":
        """Return the answer of a tool, or the tool itself if it runs a sub-agent."""
        from pydantic_core import ArgsKwargs

        def run() -> Any:
            method = getattr(self, call.name)
            function = getattr(method, "__func__", method)
            owner = () if function is method else (method.__self__,)
            arguments = ArgsKwargs(owner, dict(call.arguments))
            found = _adapter(function).validate_python(arguments)
            return found if isinstance(found, Generator) else _part(found)

        return _guarded(run)


class _CallQueue(NamedTuple):
    """Calls of one action that have not run, and the answers of those that have."""

    left: Sequence[ToolCall]
    answers: list[Message]


class _Agent(NamedTuple):
    """A tool whose sub-agent acts."""

    call: ToolCall
    tool: Generator[Any, Any, Any]
    calls: _CallQueue
    """The calls beside it."""


def _part(found: object) -> str | Image:
    """Return what a tool returns as a part of a message."""
    return found if isinstance(found, str | Image) else json.dumps(found, ensure_ascii=False)


def _guarded(run: Callable[[], V]) -> V | str:
    """Return what a call gives, or the text of what it raises."""
    try:
        return run()
    except Exception as error:  # noqa: BLE001  a tool may raise anything: the model reads it
        return _told(error)


def _told(error: Exception) -> str:
    return f"error: {type(error).__name__}: {one_line(error)}"


_DESCRIBED: WeakKeyDictionary[type[Environment], tuple[Tool, ...]] = WeakKeyDictionary()
"""Tools of each class; an environment is made for each attempt."""


@functools.lru_cache(maxsize=256)
def _adapter(function: Callable[..., object]) -> "TypeAdapter[object]":
    """Return what checks the arguments of a function and calls it; made once, in 0.2 ms or more."""
    from pydantic import TypeAdapter

    return TypeAdapter(function)  # type: ignore[arg-type]  # documented


def _marked(kind: type[Environment]) -> list[str]:
    found: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        found |= {name: None for name, value in vars(base).items() if hasattr(value, _MARK)}
    return list(found)
