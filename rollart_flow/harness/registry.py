"""Registry of agents by the name that `Harness` takes.

To add one inside the library: its module in `profiles/`, with an `AgentProfile`, and its name
below. A package adds one through an entry point of the group `rollart_flow.agents`.
"""

from rollart_flow.harness.profile import AgentProfile
from rollart_flow.registry import Registry

AGENTS: Registry[type[AgentProfile]] = Registry(
    "agents",
    {
        "bash": "rollart_flow.harness.profiles.bash:BashAgent",
        "command": "rollart_flow.harness.command:CommandProfile",
        "claude-code": "rollart_flow.harness.profiles.claude_code:ClaudeCodeProfile",
        "codex": "rollart_flow.harness.profiles.codex:CodexProfile",
        "gemini-cli": "rollart_flow.harness.profiles.gemini_cli:GeminiCliProfile",
        "qwen-code": "rollart_flow.harness.profiles.qwen_code:QwenCodeProfile",
        "opencode": "rollart_flow.harness.profiles.opencode:OpencodeProfile",
        "pi": "rollart_flow.harness.profiles.pi:PiProfile",
        "mini-swe-agent": "rollart_flow.harness.profiles.mini_swe_agent:MiniSweAgentProfile",
        "smolagents": "rollart_flow.harness.profiles.smolagents:SmolagentsProfile",
        "openai-agents": "rollart_flow.harness.profiles.openai_agents:OpenaiAgentsProfile",
    },
    setting="agent",
    kind=type,
)
