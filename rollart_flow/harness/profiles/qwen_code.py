"""Qwen Code, which asks on the wire of chat completions, as a stream."""

import json

from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installed import InstalledProfile, node, packages
from rollart_flow.harness.profiles.pins import QWEN_CODE

_SETTINGS: dict[str, object] = {
    "security": {"auth": {"selectedType": "openai"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False},
    # Calls after the task, for a memory that would vanish with the attempt.
    "memory": {
        "enableManagedAutoMemory": False,
        "enableManagedAutoDream": False,
        "enableAutoSkill": False,
    },
}


class QwenCodeProfile(InstalledProfile):
    """Qwen Code without a terminal."""

    name = "qwen-code"
    wire = "chat"
    pin = QWEN_CODE

    def launch(self, site: LaunchSite) -> Launch:
        script = f"{packages(site)}/@qwen-code/qwen-code/cli-entry.js"
        options = ("--yolo", "--auth-type", "openai", "--output-format", "stream-json")
        return Launch(
            command=(node(site), script, "--model", site.model, *options),
            variables={
                "OPENAI_BASE_URL": f"{site.url}/v1",
                "OPENAI_API_KEY": site.key,
                "OPENAI_MODEL": site.model,
                "QWEN_HOME": f"{site.home}/.qwen",
                "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
            },
            files={f"{site.home}/.qwen/settings.json": json.dumps(_settings(site))},
            stdin=site.instruction,
        )


def _settings(site: LaunchSite) -> dict[str, object]:
    return {**_SETTINGS, "model": {"generationConfig": {"contextWindowSize": site.context_tokens}}}
