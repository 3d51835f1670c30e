"""pi, which asks on the wire of chat completions with the smallest prompt of all."""

import json

from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installed import (
    CONTEXT_TOKENS,
    InstalledProfile,
    node,
    packages,
)
from rollart_flow.harness.profiles.pins import PI

_PROVIDER = "gateway"


class PiProfile(InstalledProfile):
    """pi without a terminal."""

    name = "pi"
    wire = "chat"
    pin = PI

    def launch(self, site: LaunchSite) -> Launch:
        script = f"{packages(site)}/@earendil-works/pi-coding-agent/dist/cli.js"
        chosen = ("--provider", _PROVIDER, "--model", site.model)
        options = ("--print", "--mode", "json", "--offline", "--no-session")
        folder = f"{site.home}/.pi/agent"
        return Launch(
            command=(node(site), script, *options, *chosen),
            variables={
                "PI_CODING_AGENT_DIR": folder,
                "PI_OFFLINE": "1",
                "PI_SKIP_VERSION_CHECK": "1",
                "PI_TELEMETRY": "0",
                "GATEWAY_KEY": site.key,
            },
            files={f"{folder}/models.json": json.dumps(_models(site))},
            stdin=site.instruction,
        )


def _models(site: LaunchSite) -> dict[str, object]:
    model = {
        "id": site.model,
        "name": site.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": CONTEXT_TOKENS,
    }
    return {
        "providers": {
            _PROVIDER: {
                "baseUrl": f"{site.url}/v1",
                "api": "openai-completions",
                "apiKey": "$GATEWAY_KEY",
                "models": [model],
            }
        }
    }
