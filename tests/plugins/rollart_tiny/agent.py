"""An agent that every box has: it says what it was asked."""

from rollart_flow.harness.profile import AgentProfile, Launch, LaunchSite
from rollart_tiny import used


class TinyAgent(AgentProfile):
    """Prints its instruction and asks for nothing."""

    name = "tiny"
    wire = "chat"
    version = "1"
    package = "pip:rollart-tiny"

    def launch(self, site: LaunchSite) -> Launch:
        """Return the command."""
        used("agent")
        return Launch(command=("echo", site.instruction))

    def programs(self) -> None:
        """Return no folder."""
