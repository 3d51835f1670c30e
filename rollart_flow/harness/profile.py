"""Profiles: how a program that is an agent is started and pointed at the gateway."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from rollart_flow.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSite:
    """Surroundings of a program in its box. All paths are those in the box."""

    url: str
    """Address of the gateway on the box's own loopback, without a path and a slash at the end."""
    key: str
    """Key of the session, which the program presents as its provider's key."""
    model: str
    """Name of the model, without a slash."""
    instruction: str
    """Task of the agent, in words."""
    workdir: str
    """Folder with the files of the task, in which the program starts."""
    home: str
    """Folder for settings and caches of the program, empty before `Launch.files`."""
    programs: str
    """Folder in which `AgentProfile.programs` is mounted read-only."""
    context_tokens: int
    """Most tokens of a prompt with its answer, as the policy and its engine have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command line, variables and files by which a program is started in its box."""

    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, beside HOME, PATH and LANG."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of files that the program reads, by absolute path."""
    stdin: str = ""


class AgentProfile(ABC):
    """One program, unchanged."""

    name: ClassVar[str]
    wire: ClassVar[str]
    """Wire on which it asks: chat, responses, messages or google."""
    version: ClassVar[str]
    """Version that the profile was tried with."""
    package: ClassVar[str]
    """Package with its kind, such as `npm:@openai/codex` or `pip:mini-swe-agent`."""
    needs_tools: ClassVar[bool] = True
    """Whether the chat template of the policy must have a place for tools."""
    repeats_lost: ClassVar[bool] = False
    """Whether the program ends its connection after each answer, and repeats a request only where
    the answer was lost: then the gateway takes the end of a connection for a lost answer."""

    @classmethod
    def made(cls, given: Mapping[str, object]) -> Self:
        """Return the profile with the settings of a `Harness` that say how a program is started.

        Raises:
            SettingsError: the profile says so itself, or a setting is wrong.
        """
        if given:
            raise SettingsError(
                f"agent {cls.name!r} is started as its profile says; {min(given)} is a setting of "
                'Harness("command", ...)'
            )
        return cls()

    @abstractmethod
    def launch(self, site: LaunchSite) -> Launch:
        """Return how the program is started at a task."""

    @abstractmethod
    def programs(self) -> Path | None:
        """Return the folder of the host in which the program is installed; None: every box has it.

        Raises:
            SettingsError: it is not installed; the message says how to install it.
        """
