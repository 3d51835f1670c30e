"""The versions of the programs: the only place where they are named.

npm packages are installed without their install scripts, so that what they run is in the packages
themselves; `{cpu}` is `x64` or `arm64`.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Installer(StrEnum):
    """The program that installs a package."""

    NPM = "npm"
    PIP = "pip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A package of a registry at one version."""

    installer: Installer
    package: str
    version: str
    extras: str = ""
    """Extras of a pip package."""
    beside: tuple[str, ...] = field(default=())
    """Further packages with their versions, such as the Node.js that runs the program."""

    @property
    def name(self) -> str:
        """The installer with the package, such as `npm:@openai/codex`."""
        return f"{self.installer}:{self.package}"

    def wanted(self, cpu: str) -> tuple[str, ...]:
        """Return the packages with versions as their installer takes them."""
        if self.installer is Installer.NPM:
            first = f"{self.package}@{self.version}"
        else:
            extras = f"[{self.extras}]" if self.extras else ""
            first = f"{self.package}{extras}=={self.version}"
        return (first, *(other.format(cpu=cpu) for other in self.beside))


NODE = "node-linux-{cpu}@24.21.0"
"""The Node.js of the programs that are scripts: a box need not have one."""

CLAUDE_CODE = Pin(installer=Installer.NPM, package="@anthropic-ai/claude-code", version="2.1.331")
CODEX = Pin(installer=Installer.NPM, package="@openai/codex", version="0.169.0")
GEMINI_CLI = Pin(
    installer=Installer.NPM, package="@google/gemini-cli", version="0.61.0", beside=(NODE,)
)
QWEN_CODE = Pin(
    installer=Installer.NPM, package="@qwen-code/qwen-code", version="0.24.4", beside=(NODE,)
)
OPENCODE = Pin(installer=Installer.NPM, package="opencode-ai", version="1.18.33")
PI = Pin(
    installer=Installer.NPM,
    package="@earendil-works/pi-coding-agent",
    version="0.87.1",
    beside=(NODE,),
)
MINI_SWE_AGENT = Pin(installer=Installer.PIP, package="mini-swe-agent", version="2.4.6")
SMOLAGENTS = Pin(installer=Installer.PIP, package="smolagents", version="1.26.0", extras="openai")
OPENAI_AGENTS = Pin(installer=Installer.PIP, package="openai-agents", version="0.24.0")
