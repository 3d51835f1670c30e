"""One session at a resources server of NeMo Gym: the asynchronous side of `foreign.nemo_gym`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from rollart_flow.envs.base import Info
from rollart_flow.envs.foreign.web import as_messages, json_object
from rollart_flow.envs.foreign.web_client import WebClient
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.secret import Secret
from rollart_flow.types import Action, Message, Observation, Tool, ToolCall
from rollart_flow.types.messages import tool_result, user

_STEP = tuple[Observation, float, bool, bool, Info]
_RESERVED = frozenset({"verify", "seed_session", "aggregate_metrics", "mcp", "reset", "step"})
"""Routes of the server that are no tools; a policy must not reach them."""


class NemoGymSettings(Protocol):
    """The settings of a domain that a session reads."""

    @property
    def url(self) -> str: ...

    @property
    def token(self) -> Secret | None: ...

    @property
    def max_turns(self) -> int: ...

    def solved(self, answer: Mapping[str, Any]) -> dict[str, object]: ...


class NemoGymSession:
    """Implements `control.environment.AsyncEnvironment`."""

    def __init__(self, settings: NemoGymSettings) -> None:
        self._settings = settings
        self._client = WebClient(settings.url, settings.token, f"NeMo Gym at {settings.url}")
        self._row: dict[str, Any] = {}
        self._output: list[dict[str, Any]] = []
        """Return the policy's output in the form of the Responses API."""
        self._turns = 0
        self.tools: Sequence[Tool] | None = ()

    async def start(self) -> None:
        """Connect; a server that does not answer is asked again for some seconds."""
        await self._client.open()

    async def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        """Begin a session with the task's row. The server seeds itself by the row alone."""
        row = json.loads(task)
        params = row.get("responses_create_params")
        if not isinstance(params, Mapping):
            raise EnvironmentFailedError("the row has no column responses_create_params")
        messages = _messages(params.get("input"))
        self.tools = _tools(params.get("tools") or ())
        self._row, self._output, self._turns = row, [], 0
        self._client.renew()
        await self._client.post("/seed_session", row)
        return messages, {}

    async def step(self, action: Action) -> _STEP:
        """Run the calls of an action, or verify the conversation if it makes none."""
        if not self._row:
            raise EnvironmentFailedError("step before reset; call reset first")
        self._turns += 1
        self._add(action)
        results = [await self._called(call) for call in action.tool_calls]
        last = self._turns >= self._settings.max_turns
        if results and not last:
            return results, 0.0, False, False, {}
        reward, info = await self._verified()
        return results or "", reward, not results, bool(results), info

    async def close(self) -> None:
        """Close the session's connections."""
        self._row = {}
        await self._client.close()

    def _add(self, action: Action) -> None:
        if action.text or not action.tool_calls:
            content = [{"type": "output_text", "text": action.text, "annotations": []}]
            self._output.append(
                {
                    "id": f"msg_{len(self._output)}",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": content,
                }
            )
        self._output += [
            {
                "type": "function_call",
                "id": f"fc_{call.call_id}",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": json.dumps(dict(call.arguments)),
                "status": "completed",
            }
            for call in action.tool_calls
        ]

    async def _called(self, call: ToolCall) -> Message:
        """Return the answer of a tool: whatever the server says, also that it refuses the call."""
        if call.name in _RESERVED:
            text = f"error: {call.name} is no tool"
        else:
            text = await self._client.post(
                f"/{quote(call.name, safe='')}", dict(call.arguments), refusals=True
            )
        self._output.append(
            {"type": "function_call_output", "call_id": call.call_id, "output": text}
        )
        return tool_result(call, text)

    async def _verified(self) -> tuple[float, Info]:
        params = self._row["responses_create_params"]
        response = {
            "id": "resp_0",
            "created_at": 0.0,
            "model": "policy",
            "object": "response",
            "output": self._output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": params.get("tools") or [],
        }
        text = await self._client.post("/verify", {**self._row, "response": response})
        answer = json_object(text, f"NeMo Gym at {self._settings.url}")
        reward = answer.get("reward")
        if not isinstance(reward, int | float) or isinstance(reward, bool):
            kind = type(reward).__name__
            raise EnvironmentFailedError(f"the answer of /verify has {kind} as reward")
        given = self._row.keys() | {"response", "reward"}
        info = {key: value for key, value in answer.items() if key not in given}
        return reward, {**info, **self._settings.solved(answer)}


def _messages(given: Any) -> list[Message]:
    """Return the messages that an episode begins with; a text is one of the user."""
    if isinstance(given, str):
        return [user(given)]
    found = as_messages(map(_form, given or ()), "the row")
    if not found:
        raise EnvironmentFailedError("responses_create_params of the row has no input")
    if any(message.tool_calls for message in found):
        raise EnvironmentFailedError("the row begins with calls of tools, which are not taken")
    return found


def _form(given: Any) -> dict[str, Any]:
    """Return an item of the Responses API as a message of the chat completions API."""
    content = given["content"]
    if isinstance(content, list):
        kinds = {part["type"] for part in content} - {"input_text", "output_text"}
        if kinds:
            raise ValueError(f"a part is {', '.join(sorted(kinds))}; only text is taken")
        content = "".join(part["text"] for part in content)
    return {"role": given["role"], "content": content}


def _tools(given: Any) -> tuple[Tool, ...]:
    try:
        return tuple(
            Tool(each["name"], each.get("description") or "", each["parameters"]) for each in given
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise EnvironmentFailedError(
            "the tools of the row are no functions of the Responses API"
        ) from error
