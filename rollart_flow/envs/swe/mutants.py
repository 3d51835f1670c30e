"""Tasks of repairing seeded faults in Python packages, as a domain."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from rollart_flow.envs.swe.domain import SweDomain
from rollart_flow.envs.swe.mutant_maker import MutantMaker
from rollart_flow.envs.swe.swe_task import SweTaskStore
from rollart_flow.errors import SettingsError
from rollart_flow.sandbox.boxes import LocalBoxes
from rollart_flow.validation import check_count


@dataclass(frozen=True)
class SweMutants(SweDomain):
    """Packages with a fault that their own tests notice; see `mutant_maker`.

    Tasks are made once, in boxes of the process that asks for them, and kept in `folder`.

    Raises SettingsError if a setting is out of range; asking for tasks raises it if a source cannot
    be read or no test of it passes in a box.
    """

    name: ClassVar[str] = "swe_mutants"

    sources: tuple[str, ...] | str = ()
    """Source archives (sdists) or folders of packages with their tests."""
    per_package: int = 8
    """Tasks that are made of each package, if its tests notice as many faults."""
    seed: int = 0
    """Decides which faults are made; a run's own seed only orders the tasks."""

    builds: bool = False
    """Build each package once before its tasks are made, for packages that read their own metadata
    or modules that a build writes; fetches what their build backends require with pip."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sources", _paths(self.sources))
        check_count("SweMutants.per_package", self.per_package, low=1)
        if not self.sources:
            raise SettingsError(
                "SweMutants: sources is empty; give source archives, such as those of "
                "`pip download --no-binary :all: --no-deps NAME`"
            )

    def prepared(self) -> Sequence[str]:
        return _prepared(self)


def _paths(sources: tuple[str, ...] | str) -> tuple[str, ...]:
    return (sources,) if isinstance(sources, str) else tuple(map(str, sources))


@lru_cache(maxsize=16)
def _prepared(domain: SweMutants) -> tuple[str, ...]:
    maker = MutantMaker(
        store=SweTaskStore(Path(domain.store_folder)),
        boxes=LocalBoxes(),
        spec=domain.spec(),
        per_package=domain.per_package,
        seed=domain.seed,
        timeout_s=domain.test_timeout_s,
        shows_tests=domain.shows_tests,
        packages=domain.packages,
        builds=domain.builds,
    )
    found = [digest for source in _paths(domain.sources) for digest in maker.made(Path(source))]
    return tuple(dict.fromkeys(found))
