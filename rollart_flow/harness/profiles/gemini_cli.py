"""Gemini CLI, which asks on Google's wire and names the model in the path.

It takes the context of each model that it does not know for 1,048,576 tokens. So it is told the
context as the fraction of that at which it compresses its history.
"""

import json

from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installed import InstalledProfile, node, packages
from rollart_flow.harness.profiles.pins import GEMINI_CLI

_SETTINGS: dict[str, object] = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
}

_BELIEVED_TOKENS = 1_048_576
"""Context of an unknown model (packages/core/src/core/tokenLimits.ts)."""
_FULL = 0.7
"""Part of the context at which it compresses its history, since the summary is written twice."""


class GeminiCliProfile(InstalledProfile):
    """Gemini CLI without a terminal."""

    name = "gemini-cli"
    wire = "google"
    pin = GEMINI_CLI

    def launch(self, site: LaunchSite) -> Launch:
        script = f"{packages(site)}/@google/gemini-cli/bundle/gemini.js"
        options = ("--yolo", "--skip-trust", "--output-format", "stream-json")
        return Launch(
            command=(node(site), script, "--model", site.model, *options),
            variables={
                "GOOGLE_GEMINI_BASE_URL": site.url,
                "GEMINI_API_KEY": site.key,
                "GEMINI_CLI_HOME": site.home,
                "GEMINI_CLI_NO_RELAUNCH": "true",
            },
            files={f"{site.home}/.gemini/settings.json": json.dumps(_settings(site))},
            stdin=site.instruction,
        )


def _settings(site: LaunchSite) -> dict[str, object]:
    threshold = _FULL * site.context_tokens / _BELIEVED_TOKENS
    return {**_SETTINGS, "model": {"compressionThreshold": threshold}}
