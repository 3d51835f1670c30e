"""The agent "command": any program, with what `Harness` says of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from rollart_flow.errors import SettingsError
from rollart_flow.harness.profile import AgentProfile, Launch, LaunchSite

_PLACES = re.compile("|".join(f"{{{field.name}}}" for field in fields(LaunchSite)))


@dataclass(frozen=True)
class CommandProfile(AgentProfile):
    """A program that is started by a command.

    The texts {url}, {key}, {model}, {instruction}, {workdir}, {home}, {programs} and
    {context_tokens} in the command, in variables and in files stand for what `LaunchSite`
    describes. A program whose command does
    not name {instruction} reads it from its standard input.
    """

    name: ClassVar[str] = "command"
    wire: ClassVar[str] = ""
    version: ClassVar[str] = "1"
    package: ClassVar[str] = ""
    needs_tools: ClassVar[bool] = False

    command: tuple[str, ...] = ()
    """Program and arguments."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables."""
    files: tuple[tuple[str, str], ...] = ()
    """Texts of files by their path in the box."""
    folder: str = ""
    """Folder of the host with the program, mounted read-only as {programs}; empty for none."""

    @classmethod
    def made(cls, given: Mapping[str, Any]) -> Self:
        if not given.get("command"):
            raise SettingsError(
                'agent "command" needs a command, such as Harness("command", '
                'command=["python3", "{programs}/agent.py"], programs="folder")'
            )
        folder = str(given.get("programs", ""))
        return cls(
            command=given["command"],
            variables=given.get("variables", ()),
            files=given.get("files", ()),
            folder=folder,
        )

    def launch(self, site: LaunchSite) -> Launch:
        def placed(text: str) -> str:
            return _PLACES.sub(lambda found: str(getattr(site, found[0][1:-1])), text)

        asked = any("{instruction}" in part for part in self.command)
        return Launch(
            command=[placed(part) for part in self.command],
            variables={name: placed(text) for name, text in self.variables},
            files={placed(path): placed(text) for path, text in self.files},
            stdin="" if asked else site.instruction,
        )

    def programs(self) -> Path | None:
        if not self.folder:
            return None
        folder = Path(self.folder).absolute()
        if not folder.is_dir():
            raise SettingsError(f"agent: programs={self.folder!r} is no folder of this machine")
        return folder
