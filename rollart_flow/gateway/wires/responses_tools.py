"""Tools of OpenAI's responses: namespaces, custom tools and the local shell become functions.

A template knows functions only. A tool `name` of a namespace `ns` becomes the function `ns__name`,
a custom tool becomes a function with one text, and the local shell one with a command. An answer
gets the items back that the client knows. A call whose arguments do not fit its tool's item is an
item of a function, so that the client tells the policy what is wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollart_flow.gateway.core.calls import ModelCall
from rollart_flow.gateway.wires.base import JsonObject
from rollart_flow.gateway.wires.events import CallBlock
from rollart_flow.gateway.wires.reading import Fields
from rollart_flow.gateway.wires.settings import check_hosted, function_of
from rollart_flow.types import Tool

SHELL = "local_shell"
_CUSTOM: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_COMMAND: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
}
_WITHHELD = ("web_search", "image_generation", "tool_search")
"""Begins of the types of tools that clients offer by themselves, and that are no functions."""


@dataclass(slots=True)
class OfferedTools:
    """The tools of a request: as functions, and what their items are."""

    functions: list[Tool] = field(default_factory=list)
    custom: list[str] = field(default_factory=list)
    """Functions that are custom tools."""
    namespaces: dict[str, list[str]] = field(default_factory=dict)
    """Namespace and name of a function in one."""
    hosted: list[str] = field(default_factory=list)

    def add(self, tool: Fields, space: str | None = None) -> None:
        """Add a tool, which may be a whole namespace of them."""
        kind = tool.need("type")
        if kind == "namespace" and space is None:
            tool.text("description")
            inner = tool.need("name")
            for each in tool.children("tools"):
                self.add(each, inner)
        elif kind.startswith(_WITHHELD):
            self.hosted.append(kind)
            tool.withhold("type")
        elif kind == SHELL:
            self.functions.append(Tool(SHELL, "Runs a command.", _COMMAND))
        elif kind in ("function", "custom"):
            self._add_function(tool, kind, space)
        else:
            tool.unsupported("type", f"should be function, custom or namespace, got {kind!r}")

    def extend(self, later: "OfferedTools") -> None:
        """Add tools that come after these."""
        self.functions += later.functions
        self.custom += later.custom
        self.namespaces |= later.namespaces
        self.hosted += later.hosted

    def copy(self) -> "OfferedTools":
        """Return the same tools, to which others can be added."""
        made = OfferedTools()
        made.extend(self)
        return made

    def check(self, fields: Fields) -> None:
        """Refuse a request whose only tools are those of the provider."""
        check_hosted(fields, self.hosted, self.functions)

    def reply(self) -> dict[str, object]:
        """Return what an answer has to know, for `ModelCall.reply`."""
        found: dict[str, object] = {"custom": self.custom, "namespaces": self.namespaces}
        return {name: value for name, value in found.items() if value}

    def _add_function(self, tool: Fields, kind: str, space: str | None) -> None:
        own = tool.need("name")
        name = flat_name(space, own)
        if space is not None:
            self.namespaces[name] = [space, own]
        if kind == "custom":
            self.custom.append(name)
        schema = _CUSTOM if kind == "custom" else tool.mapping("parameters")
        self.functions.append(function_of(tool, name, schema))


def flat_name(space: str | None, name: str) -> str:
    """Return the name of the function that stands for a tool of a namespace, if it is in one."""
    return f"{space}__{name}" if space else name


def call_item(block: CallBlock, call: ModelCall, place: str) -> JsonObject:
    """Return the whole item of a call, in the form of its tool.

    Args:
        block: the call.
        call: the request, which says what its tools are.
        place: end of the item's id.
    """
    spaces: Any = call.reply.get("namespaces", {})
    custom: Any = call.reply.get("custom", ())
    space, name = spaces.get(block.name, (None, block.name))
    named: JsonObject = {"call_id": f"call_{block.call.call_id}", "name": name}
    if space is not None:
        named["namespace"] = space
    arguments = block.arguments
    if block.name in custom and [*arguments] == ["input"] and isinstance(arguments["input"], str):
        item = {"type": "custom_tool_call", "id": f"ctc_{place}", "status": "completed"}
        return {**item, **named, "input": arguments["input"]}
    if block.name == SHELL and _is_command(arguments):
        item = {"type": "local_shell_call", "id": f"lsh_{place}", "status": "completed"}
        return {**item, "call_id": named["call_id"], "action": {"type": "exec", **arguments}}
    item = {"type": "function_call", "id": f"fc_{place}", "status": "completed"}
    return {**item, **named, "arguments": block.text}


def _is_command(arguments: Mapping[str, object]) -> bool:
    command = arguments.get("command")
    return isinstance(command, list) and all(isinstance(each, str) for each in command)
