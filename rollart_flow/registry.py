"""Registries of variants: the engines, weight transports, schedules and so on that a setting names.

A registry maps the names of one family to `module:attribute`, and imports a module when its name is
loaded. An installed package adds a variant through an entry point of the family's group:

    [project.entry-points."rollart_flow.engines"]
    tiny = "rollart_tiny_engine:VARIANT"

The invariants: importing a registry imports no variant and looks for no package, and a package
cannot replace a built-in variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


def load_attribute(place: str) -> Any:
    """Import `module:attribute` and return the attribute."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


@dataclass(frozen=True, slots=True)
class Requirement:
    """An optional package that a variant needs, as `rollart doctor` reports it."""

    name: str
    """Name of the row of the report."""
    packages: tuple[str, ...]
    """Distributions, of which any one will do; the first one is for machines with a GPU."""
    extra: str
    """Extra of rollart-flow that installs the package."""
    problem: Callable[[], str] | None = None
    """Returns why the installed package cannot be used, with a remedy; empty if it can."""
    summary: Callable[[bool], str] | None = None
    """Describes the installed package in one line, given whether there is an NVIDIA GPU."""


class Registry(Generic[T]):
    """The variants of one family, by name.

    Args:
        family: name of the family; packages add variants to the group `rollart_flow.<family>`.
        builtin: `module:attribute` by name, in the order in which names are listed.
        setting: the setting that names a variant, for error messages.
        kind: class that every variant is an instance of.
        also: values of the setting that name no variant, for error messages.
    """

    def __init__(
        self,
        family: str,
        builtin: Mapping[str, str],
        *,
        setting: str,
        kind: type[object] = object,
        also: tuple[str, ...] = (),
    ) -> None:
        self.group = f"rollart_flow.{family}"
        self.setting = setting
        self._builtin = dict(builtin)
        self._kind = kind
        self._also = also

    def names(self) -> tuple[str, ...]:
        """Names of the built-in variants, then of those that packages add, sorted."""
        return (*self._builtin, *sorted(self._added().keys() - self._builtin.keys()))

    def __contains__(self, name: object) -> bool:
        """Whether a variant has this name; looks for packages only if no built-in one has it."""
        return name in self._builtin or name in self._added()

    def check(self, name: object) -> None:
        """Refuse a name that no variant has; imports no variant.

        Raises:
            SettingsError: lists the names and suggests the nearest one.
        """
        if name in self:
            return
        values = sorted((*self.names(), *self._also))
        near = get_close_matches(str(name), values, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        expected = ", ".join(values)
        raise SettingsError(f"{self.setting}={name!r}: expected one of {expected}{hint}")

    def load(self, name: str) -> T:
        """The variant of a name, imported now.

        Raises:
            SettingsError: no variant has the name, two packages add it, or the package that adds
                it cannot be imported or gives something else.
        """
        self.check(name)
        if (place := self._builtin.get(name)) is not None:
            return cast(T, load_attribute(place))
        return self._load_added(name, self._added()[name])

    def variants(self) -> Iterator[tuple[str, T]]:
        """Every name with its variant, imported as the iteration reaches it."""
        for name in self.names():
            yield name, self.load(name)

    def _added(self) -> dict[str, list[EntryPoint]]:
        """Entry points of the group by name; several where packages collide."""
        from importlib.metadata import entry_points

        added: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group):
            if all(point.value != other.value for other in added.get(point.name, ())):
                added.setdefault(point.name, []).append(point)
        return added

    def _load_added(self, name: str, points: list[EntryPoint]) -> T:
        packages = " and ".join(sorted(_package(point) for point in points))
        if len(points) > 1:
            raise SettingsError(
                f"{self.setting}={name!r}: {packages} both add it; uninstall one of them"
            )
        try:
            found: object = points[0].load()
        except (ImportError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise SettingsError(
                f"{self.setting}={name!r}: {points[0].value} of {packages} cannot be imported: "
                f"{reason}"
            ) from error
        if not isinstance(found, self._kind):
            raise SettingsError(
                f"{self.setting}={name!r}: {points[0].value} of {packages} is no "
                f"{self._kind.__name__}"
            )
        return cast(T, found)


def _package(point: EntryPoint) -> str:
    return "a package" if point.dist is None else f"package {point.dist.name}"
