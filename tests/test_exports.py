"""Names that a package imports when they are first used."""

import sys
from pathlib import Path

import pytest

PACKAGE = """
from rollart_flow.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"deep": "answer", "": "other"})
here = 1
"""


@pytest.fixture
def lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a package with two modules, one of which exports a name."""
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "deep.py").write_text("answer = 42\n")
    (folder / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("lazy_package", "lazy_package.deep", "lazy_package.other"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return "lazy_package"


def test_module_is_loaded_when_its_name_is_used(lazy: str) -> None:
    package = __import__(lazy)
    assert "lazy_package.deep" not in sys.modules
    assert package.answer == 42
    assert "lazy_package.deep" in sys.modules


def test_module_itself_may_be_exported(lazy: str) -> None:
    assert __import__(lazy).other.__name__ == "lazy_package.other"


def test_dir_names_what_is_there_and_what_can_be_loaded(lazy: str) -> None:
    assert {"answer", "other", "here"} <= set(dir(__import__(lazy)))


def test_another_name_is_an_attribute_error(lazy: str) -> None:
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'question'"):
        __import__(lazy).question  # noqa: B018  the access is what fails
