"""The agent "bash": a loop with one tool, which every box can run without an installation."""

from pathlib import Path
from typing import ClassVar

from rollart_flow.harness.profile import AgentProfile, Launch, LaunchSite

_PROGRAM = Path(__file__).parents[1] / "bash_agent.py"
_TURNS = 30


class BashAgent(AgentProfile):
    """The program `harness.bash_agent`."""

    name: ClassVar[str] = "bash"
    wire: ClassVar[str] = "chat"
    version: ClassVar[str] = "1"
    package: ClassVar[str] = "rollart-flow"

    def launch(self, site: LaunchSite) -> Launch:
        return Launch(
            command=["python3", "-c", _PROGRAM.read_text(), str(_TURNS)],
            variables={
                "OPENAI_BASE_URL": f"{site.url}/v1",
                "OPENAI_API_KEY": site.key,
                "OPENAI_MODEL": site.model,
            },
            stdin=site.instruction,
        )

    def programs(self) -> None:
        """Return None: every box has Python."""
