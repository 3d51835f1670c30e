"""An attempt at a SWE task: an agent with tools changes files in a box, and its diff is judged."""

from rollart_flow.envs.swe.box_agent import AgentLimits, BoxAgentEnvironment
from rollart_flow.envs.swe.workspace import SweSettings, SweWorkspace


class SweEnvironment(BoxAgentEnvironment):
    """One attempt; see `SweWorkspace` for what `info` of its last step has.

    Args:
        settings: the domain.
    """

    version = "swe/1"

    def __init__(self, settings: SweSettings) -> None:
        limits = (settings.max_turns, settings.command_timeout_s, settings.output_characters)
        super().__init__(AgentLimits(*limits), SweWorkspace(settings))
