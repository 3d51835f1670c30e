"""pi, which asks on the wire of chat completions with the smallest prompt of all."""

import json

from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installed import InstalledProfile, node, packages
from rollart_flow.harness.profiles.pins import PI

_PROVIDER = "gateway"
_RESERVED_TOKENS, _KEPT_TOKENS = 16_384, 20_000
"""The program's own defaults: it compacts its history where less than the first is left of the
context, and keeps as many recent tokens as the second says."""
_RESERVED_SHARE, _KEPT_SHARE = 4, 8
"""Both are at most these parts of the context, so that a small one has room for a history."""


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
            files={
                f"{folder}/models.json": json.dumps(_models(site)),
                f"{folder}/settings.json": json.dumps({"compaction": _compaction(site)}),
            },
            stdin=site.instruction,
        )


def _compaction(site: LaunchSite) -> dict[str, int]:
    context = site.context_tokens
    return {
        "reserveTokens": min(_RESERVED_TOKENS, context // _RESERVED_SHARE),
        "keepRecentTokens": min(_KEPT_TOKENS, context // _KEPT_SHARE),
    }


def _models(site: LaunchSite) -> dict[str, object]:
    model = {
        "id": site.model,
        "name": site.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": site.context_tokens,
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
