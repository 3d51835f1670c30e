"""opencode, which asks on the wire of chat completions, as a stream.

Its settings have a provider of another name with the model, since it does nothing for a model that
it does not know, and asks on another wire where the provider is called `openai`. With a title for
the session, it asks the model for none.
"""

import json

from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installed import InstalledProfile, packages
from rollart_flow.harness.profiles.installing import cpu
from rollart_flow.harness.profiles.pins import OPENCODE

_PROVIDER = "gateway"
_ANSWER_TOKENS = 32_000
_ANSWER_SHARE = 4
"""The program compacts its history where the rest of the context is smaller than an answer; so an
answer has at most this part of the context."""


class OpencodeProfile(InstalledProfile):
    """opencode without a terminal."""

    name = "opencode"
    wire = "chat"
    pin = OPENCODE

    def launch(self, site: LaunchSite) -> Launch:
        package = {"x64": "opencode-linux-x64-baseline", "arm64": "opencode-linux-arm64"}[cpu()]
        model = f"{_PROVIDER}/{site.model}"
        return Launch(
            command=(
                f"{packages(site)}/{package}/bin/opencode", "run", "--auto", "--format", "json",
                "--model", model, "--title", "task",
            ),
            variables={
                "OPENCODE_CONFIG": f"{site.home}/opencode.json",
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
                "GATEWAY_KEY": site.key,
            },
            files={f"{site.home}/opencode.json": json.dumps(_settings(site, model))},
            stdin=site.instruction,
        )  # fmt: skip


def _settings(site: LaunchSite, model: str) -> dict[str, object]:
    context = site.context_tokens
    limit = {"context": context, "output": min(_ANSWER_TOKENS, context // _ANSWER_SHARE)}
    return {
        "model": model,
        "small_model": model,
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": [_PROVIDER],
        "permission": "allow",
        "provider": {
            _PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{site.url}/v1", "apiKey": "{env:GATEWAY_KEY}"},
                "models": {site.model: {"tool_call": True, "limit": limit}},
            }
        },
    }
