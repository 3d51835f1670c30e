"""Checks of agents that are programs, before an attempt starts."""

from rollart_flow.control.environment import ChatCodec
from rollart_flow.errors import SettingsError
from rollart_flow.harness.harness import Harness
from rollart_flow.types import Tool

_TOOL = Tool("look", "Looks.", {"type": "object", "properties": {}})


def check_agent(agent: Harness, codec: ChatCodec | None) -> None:
    """Refuse an agent that cannot work on this machine, or with a policy.

    Args:
        agent: the agent.
        codec: codec of the policy; None: it is not known.

    Raises:
        SettingsError: the program is not installed here, or it needs tools, for which the chat
            template of the policy has no place.
    """
    profile = agent.profile()
    profile.programs()
    if codec is None or not profile.needs_tools:
        return
    try:
        codec.converse([_TOOL])
    except SettingsError as error:
        raise SettingsError(f"agent {agent.name!r} offers tools: {error}") from error
