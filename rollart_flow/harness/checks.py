"""Checks of agents that are programs, before an attempt starts."""

from rollart_flow.control.environment import ChatCodec
from rollart_flow.errors import SettingsError
from rollart_flow.gateway.core.tool_support import refusal_of_tools
from rollart_flow.harness.harness import Harness


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
    if (refusal := refusal_of_tools(codec)) is not None:
        raise SettingsError(f"agent {agent.name!r} offers tools: {refusal}") from refusal
