"""The command of smolagents, whose agent writes Python instead of calling tools.

It asks on the wire of chat completions with results of code as text of the user, so that the
template of the policy needs no place for tools.
"""

from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installed import InstalledProfile, python_variables
from rollart_flow.harness.profiles.pins import SMOLAGENTS

_IMPORTS = ("os", "pathlib", "subprocess", "shutil", "json", "posixpath")
"""Modules that the agent's code may import: those with which it reaches files and programs."""


class SmolagentsProfile(InstalledProfile):
    """The CodeAgent of smolagents without tools for the web."""

    name = "smolagents"
    wire = "chat"
    pin = SMOLAGENTS
    needs_tools = False

    def launch(self, site: LaunchSite) -> Launch:
        model = ("--model-type", "OpenAIModel", "--model-id", site.model)
        return Launch(
            command=(
                "python3", f"{site.programs}/bin/smolagent", *model, "--api-base", f"{site.url}/v1",
                "--action-type", "code", "--tools", "--imports", *_IMPORTS,
                "--", site.instruction,
            ),
            variables={
                **python_variables(site),
                # The command reads the key of an OpenAIModel from this variable.
                "FIREWORKS_API_KEY": site.key,
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": f"{site.home}/.huggingface",
            },
        )  # fmt: skip
