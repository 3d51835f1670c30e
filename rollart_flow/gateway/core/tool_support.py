"""The check whether a policy can be asked to call tools."""

from rollart_flow.control.environment import ChatCodec
from rollart_flow.errors import SettingsError
from rollart_flow.types import Tool

_TOOL = Tool("look", "Looks.", {"type": "object", "properties": {}})


def refusal_of_tools(codec: ChatCodec) -> SettingsError | None:
    """Return why the chat template of a policy has no place for tools; None if it has one."""
    try:
        codec.converse([_TOOL])
    except SettingsError as error:
        return error
    return None
