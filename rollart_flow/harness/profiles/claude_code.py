"""Claude Code, which asks on the wire of messages.

Its system prompt begins with a line whose checksum changes with every call unless
CLAUDE_CODE_ATTRIBUTION_HEADER is 0. As root it works without questions only with IS_SANDBOX. The
size of the context is taken from CLAUDE_CODE_MAX_CONTEXT_TOKENS, since it does not know the model.
"""

from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installed import InstalledProfile, packages
from rollart_flow.harness.profiles.installing import cpu
from rollart_flow.harness.profiles.pins import CLAUDE_CODE


class ClaudeCodeProfile(InstalledProfile):
    """Claude Code without a terminal."""

    name = "claude-code"
    wire = "messages"
    pin = CLAUDE_CODE

    def launch(self, site: LaunchSite) -> Launch:
        program = f"{packages(site)}/@anthropic-ai/claude-code-linux-{cpu()}/claude"
        output = ("--output-format", "stream-json", "--verbose")
        return Launch(
            command=(program, "--print", *output, "--dangerously-skip-permissions"),
            variables={
                "ANTHROPIC_BASE_URL": site.url,
                "ANTHROPIC_API_KEY": site.key,
                "ANTHROPIC_MODEL": site.model,
                "ANTHROPIC_SMALL_FAST_MODEL": site.model,
                "ANTHROPIC_DEFAULT_HAIKU_MODEL": site.model,
                "CLAUDE_CODE_SUBAGENT_MODEL": site.model,
                "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(site.context_tokens),
                "CLAUDE_CONFIG_DIR": f"{site.home}/.claude",
                "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
                "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",  # it would vanish with the attempt
                "DISABLE_AUTOUPDATER": "1",
                "IS_SANDBOX": "1",
            },
            stdin=site.instruction,
        )
