"""Codex, which asks on the wire of responses, always as a stream.

A provider of the program's own cannot be pointed elsewhere and tries a WebSocket first, so that its
settings name another one. It leaves each stream at its last event, which ends the connection.
"""

from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installed import InstalledProfile, packages
from rollart_flow.harness.profiles.installing import cpu
from rollart_flow.harness.profiles.pins import CODEX

_TRIPLES = {"x64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}
_SETTINGS = """\
model = "{model}"
model_provider = "gateway"
model_context_window = {context_tokens}
web_search = "disabled"
check_for_update_on_startup = false
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.gateway]
name = "gateway"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "GATEWAY_KEY"
supports_websockets = false

[analytics]
enabled = false

[feedback]
enabled = false
"""


class CodexProfile(InstalledProfile):
    """Codex without a terminal; the box takes the place of its own sandbox."""

    name = "codex"
    wire = "responses"
    pin = CODEX
    repeats_lost = True

    def launch(self, site: LaunchSite) -> Launch:
        folder = f"{packages(site)}/@openai/codex-linux-{cpu()}/vendor/{_TRIPLES[cpu()]}"
        options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
        settings = _SETTINGS.format(
            model=site.model, url=site.url, context_tokens=site.context_tokens
        )
        return Launch(
            command=(f"{folder}/bin/codex", "exec", *options, "--cd", site.workdir, "-"),
            variables={"CODEX_HOME": f"{site.home}/.codex", "GATEWAY_KEY": site.key},
            files={f"{site.home}/.codex/config.toml": settings},
            stdin=site.instruction,
        )
