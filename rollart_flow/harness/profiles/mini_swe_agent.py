"""mini-SWE-agent, which asks on the wire of chat completions without streams.

It counts costs and stops at a model without a price, so that its settings ignore them.
"""

import json

from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installed import InstalledProfile, python_variables
from rollart_flow.harness.profiles.pins import MINI_SWE_AGENT


class MiniSweAgentProfile(InstalledProfile):
    """mini-SWE-agent with its own settings and its tool `bash`."""

    name = "mini-swe-agent"
    wire = "chat"
    pin = MINI_SWE_AGENT

    def launch(self, site: LaunchSite) -> Launch:
        settings = f"{site.home}/task.yaml"
        return Launch(
            command=(
                "python3", f"{site.programs}/bin/mini", "-c", "mini.yaml", "-c", settings,
            ),
            variables={
                **python_variables(site),
                "OPENAI_BASE_URL": f"{site.url}/v1",
                "OPENAI_API_BASE": f"{site.url}/v1",
                "OPENAI_API_KEY": site.key,
                "MSWEA_CONFIGURED": "true",
                "MSWEA_COST_TRACKING": "ignore_errors",
                "MSWEA_GLOBAL_CONFIG_DIR": f"{site.home}/.mini-swe-agent",
                "MSWEA_SILENT_STARTUP": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "HF_HUB_OFFLINE": "1",
            },
            files={settings: json.dumps(_settings(site))},
        )  # fmt: skip


def _settings(site: LaunchSite) -> dict[str, object]:
    return {
        "run": {"task": site.instruction},
        "agent": {"mode": "yolo", "confirm_exit": False, "cost_limit": 0},
        "environment": {"cwd": site.workdir},
        "model": {"model_name": f"openai/{site.model}"},
    }
