"""A package of a few lines whose faults try the parts of SWE tasks out, without any download."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rollart_flow.envs.swe.mutants import SweMutants

_FILES = {
    "marks.py": '''"""Marks of pupils."""


def grade(points):
    if points < 0 or points > 100:
        raise ValueError("points are out of range")
    return "A" if points >= 90 else "B" if points >= 50 else "C"
''',
    "tests/test_marks.py": """import pytest

from marks import grade


@pytest.mark.parametrize(("points", "mark"), [(100, "A"), (90, "A"), (50, "B"), (0, "C")])
def test_grades_have_their_bounds(points, mark):
    assert grade(points) == mark


@pytest.mark.parametrize("points", [-1, 101])
def test_points_have_a_range(points):
    with pytest.raises(ValueError):
        grade(points)
""",
}


@dataclass(frozen=True)
class SweSample(SweMutants):
    """Faults in a package of one module, which is written beside its tasks."""

    name: ClassVar[str] = "swe_sample"

    sources: tuple[str, ...] | str = ("marks",)
    """Name of the package; there is no other one."""
    per_package: int = 4
    held_out_fraction: float = 0.0

    def prepared(self) -> Sequence[str]:
        """Write the package, and return the tasks that are made of it."""
        folder = Path(self.store_folder) / "packages" / "marks"
        for path, text in _FILES.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        made = SweMutants(
            sources=str(folder),
            per_package=self.per_package,
            seed=self.seed,
            folder=self.store_folder,
            shows_tests=self.shows_tests,
            test_timeout_s=self.test_timeout_s,
            memory_mb=self.memory_mb,
            disk_mb=self.disk_mb,
        )
        return made.prepared()
