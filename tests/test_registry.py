"""Registries of variants: built-in names, names that packages add, and what is refused."""

import sys
from pathlib import Path

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.registry import Registry

FRACTIONS: Registry[type] = Registry(
    "shapes",
    {"fraction": "fractions:Fraction", "decimal": "decimal:Decimal", "gone": "no_such_module:X"},
    setting="shape.kind",
    kind=type,
)


def install(folder: Path, package: str, entry_points: str, source: str = "") -> None:
    """Put a package with entry points of the group `rollart_flow.shapes` into a folder."""
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rollart_flow.shapes]\n{entry_points}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_variant_is_imported_when_it_is_loaded_and_not_before() -> None:
    assert FRACTIONS.names() == ("fraction", "decimal", "gone")
    FRACTIONS.check("gone")
    assert FRACTIONS.load("fraction").__name__ == "Fraction"
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        FRACTIONS.load("gone")


def test_a_built_in_name_is_found_without_looking_for_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", None)
    assert "fraction" in FRACTIONS
    FRACTIONS.check("decimal")
    with pytest.raises(TypeError):
        assert "circle" not in FRACTIONS


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SettingsError) as refused:
        FRACTIONS.load("fractoin")
    assert str(refused.value) == (
        "shape.kind='fractoin': expected one of decimal, fraction, gone (did you mean fraction?)"
    )


def test_an_unknown_name_that_is_near_to_none_gets_no_suggestion() -> None:
    with pytest.raises(SettingsError) as refused:
        FRACTIONS.check(7)
    assert str(refused.value) == "shape.kind=7: expected one of decimal, fraction, gone"


def test_an_installed_package_adds_a_variant(site: Path) -> None:
    install(site, "round-shapes", "circle = round_shapes:Circle", "class Circle: pass")
    assert FRACTIONS.names() == ("fraction", "decimal", "gone", "circle")
    assert FRACTIONS.load("circle").__name__ == "Circle"


def test_a_package_cannot_replace_a_built_in_variant(site: Path) -> None:
    install(site, "false-shapes", "fraction = false_shapes:Circle", "class Circle: pass")
    assert FRACTIONS.names() == ("fraction", "decimal", "gone")
    assert FRACTIONS.load("fraction").__name__ == "Fraction"


def test_a_name_that_two_packages_add_is_refused_when_it_is_loaded(site: Path) -> None:
    install(site, "one-shapes", "circle = one_shapes:Circle", "class Circle: pass")
    install(site, "two-shapes", "circle = two_shapes:Circle", "class Circle: pass")
    with pytest.raises(SettingsError, match="package one-shapes and package two-shapes both add"):
        FRACTIONS.load("circle")
    assert FRACTIONS.load("decimal").__name__ == "Decimal"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "cannot be imported: No module named 'no_such_module'"),
        ("", "cannot be imported: module 'bad_shapes' has no attribute 'Circle'"),
        ("Circle = 3", "is no type"),
    ],
)
def test_a_package_that_gives_no_variant_is_named(
    site: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    install(site, "bad-shapes", "circle = bad_shapes:Circle", source)
    monkeypatch.delitem(sys.modules, "bad_shapes", raising=False)
    with pytest.raises(SettingsError) as refused:
        FRACTIONS.load("circle")
    expected = f"shape.kind='circle': bad_shapes:Circle of package bad-shapes {reason}"
    assert str(refused.value) == expected


def test_every_variant_is_listed_with_its_name(site: Path) -> None:
    registry: Registry[type] = Registry(
        "shapes", {"fraction": "fractions:Fraction"}, setting="shape.kind", kind=type
    )
    install(site, "square-shapes", "square = square_shapes:Square", "class Square: pass")
    found = {name: variant.__name__ for name, variant in registry.variants()}
    assert found == {"fraction": "Fraction", "square": "Square"}
