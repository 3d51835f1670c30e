"""An agent of the OpenAI Agents SDK with one tool, a shell, on the wire of responses.

The SDK is no program: the agent is a short script of ours, which reads the instruction from its
standard input.
"""

from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installed import InstalledProfile, python_variables
from rollart_flow.harness.profiles.pins import OPENAI_AGENTS

_SCRIPT = '''\
import os
import subprocess
import sys

from agents import Agent, Runner, function_tool

MAX_TURNS = 200
MAX_OUTPUT = 20_000


@function_tool
def shell(command: str) -> str:
    """Run a command with sh in the folder of the task, and return its output and exit code."""
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=600, errors="replace"
    )
    return f"{done.stdout}{done.stderr}"[-MAX_OUTPUT:] + f"\\n(exit code {done.returncode})"


agent = Agent(
    name="agent",
    instructions="You solve tasks in a folder of files. Use the shell; answer when you are done.",
    model=os.environ["GATEWAY_MODEL"],
    tools=[shell],
)
print(Runner.run_sync(agent, sys.stdin.read(), max_turns=MAX_TURNS).final_output)
'''


class OpenaiAgentsProfile(InstalledProfile):
    """An agent of the OpenAI Agents SDK."""

    name = "openai-agents"
    wire = "responses"
    pin = OPENAI_AGENTS

    def launch(self, site: LaunchSite) -> Launch:
        script = f"{site.home}/agent.py"
        return Launch(
            command=("python3", script),
            variables={
                **python_variables(site),
                "OPENAI_BASE_URL": f"{site.url}/v1",
                "OPENAI_API_KEY": site.key,
                "OPENAI_AGENTS_DISABLE_TRACING": "1",
                "GATEWAY_MODEL": site.model,
            },
            files={script: _SCRIPT},
            stdin=site.instruction,
        )
