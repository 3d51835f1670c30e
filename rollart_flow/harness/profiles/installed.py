"""Profiles of programs that `rollart agents install` puts into a folder."""

from pathlib import Path
from typing import ClassVar

from rollart_flow.errors import SettingsError
from rollart_flow.harness.profile import AgentProfile, LaunchSite
from rollart_flow.harness.profiles.installing import agents_folder, cpu, installed_version
from rollart_flow.harness.profiles.pins import Pin


class InstalledProfile(AgentProfile):
    """A program of a package, which is installed in a folder of its own."""

    pin: ClassVar[Pin]

    def __init_subclass__(cls) -> None:
        cls.version = cls.pin.version
        cls.package = cls.pin.name

    def programs(self) -> Path:
        folder = agents_folder() / self.name
        found = installed_version(folder)
        if found == self.version:
            return folder
        other = f"version {found} of it is in {folder}" if found else f"it is not in {folder}"
        raise SettingsError(
            f"agent={self.name!r} needs version {self.version}, and {other}; "
            f"run `rollart agents install {self.name}`"
        )


def packages(site: LaunchSite) -> str:
    """Return the folder of installed npm packages in the box."""
    return f"{site.programs}/node_modules"


def node(site: LaunchSite) -> str:
    """Return the Node.js that is installed with a program."""
    return f"{packages(site)}/node-linux-{cpu()}/bin/node"


def python_variables(site: LaunchSite) -> dict[str, str]:
    """Return the variables with which the box's Python finds the installed packages."""
    return {"PYTHONPATH": site.programs, "PYTHONDONTWRITEBYTECODE": "1"}
