"""One episode at a time over a websocket of OpenEnv: the asynchronous side of `foreign.openenv`."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rollart_flow.envs.base import Info
from rollart_flow.envs.foreign.openenv_socket import (
    OpenEnvAnswer,
    OpenEnvPlace,
    OpenEnvSocket,
    RefusedActionError,
)
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.text import one_line
from rollart_flow.types import Action, Observation, Tool, ToolCall
from rollart_flow.types.messages import tool_result

_STEP = tuple[Observation, Any, Any, bool, Info]
_LIST_TOOLS = {"type": "list_tools"}
_SETTING_ERRORS = {"missing", "extra_forbidden"}
"""Types of validation errors that no text of a policy causes if its field has a name."""


class OpenEnvSettings(OpenEnvPlace, Protocol):
    """The settings of a domain that a session reads."""

    @property
    def show(self) -> str | Callable[[Mapping[str, Any]], Observation]: ...

    @property
    def action(self) -> str | Callable[[str | Action], Mapping[str, Any]]: ...

    @property
    def tools(self) -> bool: ...

    @property
    def invalid_reward(self) -> float: ...

    def solved(self, answer: Mapping[str, Any]) -> dict[str, object]: ...


class OpenEnvSession:
    """Implements `control.environment.AsyncEnvironment`; has the connection of one environment."""

    def __init__(self, settings: OpenEnvSettings) -> None:
        self._settings = settings
        self._socket = OpenEnvSocket(settings)
        self.tools: Sequence[Tool] | None = None

    async def start(self) -> None:
        """Connect; a server that is full is asked again until `wait_s` have passed."""
        await self._socket.open()

    async def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        """Reset with the seed and the arguments of the task's row."""
        await self._socket.open()
        answer = await self._socket.ask("reset", {"seed": seed, **json.loads(task)})
        if self._settings.tools:
            self.tools = await self._listed()
        if answer.done:
            raise EnvironmentFailedError("the episode is done before its first action")
        return self._shown(answer.observation), answer.metadata

    async def step(self, action: str | Action) -> _STEP:
        """Send an action, or the calls of tools that it makes."""
        if isinstance(action, Action) and action.tool_calls:
            return await self._called(action.tool_calls)
        if self.tools is not None and not self._settings.action:
            return "", 0.0, True, False, {}
        text = action if isinstance(action, str) else action.text
        try:
            answer = await self._socket.ask("step", self._made(action, text))
        except RefusedActionError as error:
            if self._settings.action and error.kind in _SETTING_ERRORS:
                raise EnvironmentFailedError(f"{error}; see the setting action") from error
            return f"error: {error}", self._settings.invalid_reward, False, False, {}
        return (self._shown(answer.observation), *self._ended(answer))

    async def close(self) -> None:
        """Tell the server that the session ends, and close the connection."""
        await self._socket.close()

    def _ended(self, answer: OpenEnvAnswer) -> tuple[Any, Any, bool, Info]:
        found = {"metadata": answer.metadata, "observation": answer.observation}
        solved = self._settings.solved({**answer.observation, **found})
        return answer.reward, answer.done, False, {**answer.metadata, **solved}

    def _made(self, action: str | Action, text: str) -> Mapping[str, Any]:
        how = self._settings.action
        if callable(how):
            made: Any = how(action)
            if not isinstance(made, Mapping):
                kind = type(made).__name__
                raise EnvironmentFailedError(f"action returned {kind}, not a JSON object")
            return made
        if how:
            return {how: text}
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RefusedActionError(f"the action is no JSON: {one_line(error)}") from error
        if not isinstance(found, dict):
            raise RefusedActionError("the action is no JSON object")
        return found

    def _shown(self, observation: Mapping[str, Any]) -> Observation:
        how = self._settings.show
        if callable(how):
            return how(observation)
        try:
            if "{" in how:
                return how.format_map(observation)
            if how:
                return _text(observation[how])
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            names = ", ".join(sorted(observation)) or "none"
            raise EnvironmentFailedError(
                f"show is {how!r}, but the observation has the fields {names}"
            ) from error
        shown = {name: value for name, value in observation.items() if name != "metadata"}
        return _text(next(iter(shown.values())) if len(shown) == 1 else shown)

    async def _listed(self) -> tuple[Tool, ...]:
        answer = await self._socket.ask("step", _LIST_TOOLS)
        try:
            return tuple(
                Tool(str(each["name"]), str(each["description"] or ""), dict(each["input_schema"]))
                for each in answer.observation["tools"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EnvironmentFailedError("the server lists no tools; set tools=False") from error

    async def _called(self, calls: Sequence[ToolCall]) -> _STEP:
        results, reward, last = [], 0.0, None
        for call in calls:
            if last is not None and last.done:
                results.append(tool_result(call, "error: the episode has ended"))
                continue
            made = {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
            try:
                last = await self._socket.ask("step", made)
            except RefusedActionError as error:
                results.append(tool_result(call, f"error: {error}"))
                continue
            results.append(tool_result(call, _result(last.observation)))
            reward += last.reward
        if last is None:
            return results, self._settings.invalid_reward, False, False, {}
        _, *ending = self._ended(last)
        return (results, reward, *ending)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _result(observation: Mapping[str, Any]) -> str:
    """Return the text of a tool's answer: its texts, its error, or its result as JSON."""
    if (error := observation.get("error")) is not None:
        said = error.get("message") if isinstance(error, Mapping) else error
        return f"error: {one_line(said)}"
    result = observation.get("result")
    parts = result.get("content") if isinstance(result, Mapping) else None
    if isinstance(parts, list):
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
        if texts and all(isinstance(text, str) for text in texts):
            return "\n".join(map(str, texts))
    return _text(result)
