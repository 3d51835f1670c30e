"""Gemini CLI, which asks on Google's wire and names the model in the path."""

import json

from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installed import InstalledProfile, node, packages
from rollart_flow.harness.profiles.pins import GEMINI_CLI

_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
}


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
            files={f"{site.home}/.gemini/settings.json": json.dumps(_SETTINGS)},
            stdin=site.instruction,
        )
