"""Tools of a request to Google: declarations of functions, whose schemas become JSON Schema."""

from collections.abc import Mapping
from typing import Any

from rollart_flow.gateway.wires.reading import Fields
from rollart_flow.gateway.wires.settings import CHANGES_DISTRIBUTION, check_hosted, function_of
from rollart_flow.types import Tool

_HOSTED = (
    "googleSearch", "googleSearchRetrieval", "urlContext", "googleMaps", "enterpriseWebSearch",
    "codeExecution", "fileSearch", "retrieval", "computerUse", "mcpServers",
)  # fmt: skip


def read_tools(fields: Fields) -> list[Tool]:
    """Return the functions of a request; tools that the provider runs are left out beside them."""
    hosted: list[str] = []
    found: list[Tool] = []
    for tool in fields.children("tools"):
        hosted += [name for name in _HOSTED if name in tool]
        found += [_function(each) for each in tool.children("functionDeclarations")]
    check_hosted(fields, hosted, found)
    return found


def may_call(fields: Fields) -> bool:
    """Return whether tools may be called; a request that forces a call is refused."""
    config = fields.child("toolConfig")
    if config is None:
        return True
    with config:
        calling = config.child("functionCallingConfig")
        if calling is None:
            return True
        with calling:
            mode = (calling.text("mode") or "AUTO").upper()
            if mode not in ("AUTO", "NONE", "MODE_UNSPECIFIED"):
                calling.unsupported(
                    "mode", f"should be AUTO or NONE: another {CHANGES_DISTRIBUTION}"
                )
            return mode != "NONE"


def _function(declared: Fields) -> Tool:
    plain = declared.mapping("parametersJsonSchema")
    typed = declared.mapping("parameters")
    schema = plain if plain is not None else typed and json_schema(typed)
    return function_of(declared, declared.need("name"), schema)


def json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with the names of types in lower case, as JSON Schema has them."""
    return {name: _lower(name, value) for name, value in schema.items()}


def _lower(name: str, value: Any) -> Any:
    if name == "type" and isinstance(value, str):
        return value.lower()
    if isinstance(value, Mapping):
        return json_schema(value)
    if isinstance(value, list):
        return [json_schema(each) if isinstance(each, Mapping) else each for each in value]
    return value
