"""An attempt at a task folder: an agent with tools in a box, and the folder's own verifier."""

from rollart_flow.envs.swe.box_agent import AgentLimits, BoxAgentEnvironment
from rollart_flow.envs.swe.harbor.workspace import HARBOR_VERSION, HarborSettings, HarborWorkspace


class HarborEnvironment(BoxAgentEnvironment):
    """One attempt; see `HarborWorkspace` for what `info` of its last step has.

    Args:
        settings: the domain.
    """

    version = HARBOR_VERSION

    def __init__(self, settings: HarborSettings) -> None:
        limits = (settings.max_turns, settings.command_timeout_s, settings.output_characters)
        super().__init__(AgentLimits(*limits), HarborWorkspace(settings))
