"""How classes and functions are named to another process."""

import functools
import json
import sys
from collections import OrderedDict
from pathlib import Path

import pytest

from rollart_flow.isolation.references import reference, resolve


def test_what_can_be_imported_is_named_and_found_again() -> None:
    where = json.loads(json.dumps(reference(OrderedDict.fromkeys)))
    assert "pickled" in where  # a bound method of a built-in class has no module
    where = json.loads(json.dumps(reference(json.JSONDecoder)))
    assert where["module"] == "json.decoder"
    assert resolve(where) is json.JSONDecoder


def test_a_source_is_no_excuse_to_load_a_library_from_elsewhere(tmp_path: Path) -> None:
    where = reference(json.dumps, source=tmp_path / "pipeline.py")
    assert where["source"] == json.__file__


def test_a_module_that_cannot_be_imported_is_loaded_from_its_file(tmp_path: Path) -> None:
    source = tmp_path / "anything.txt"
    source.write_text("class Outer:\n    class Inner:\n        name = __name__\n")
    where = {"module": "rollart_test_only", "qualname": "Outer.Inner", "source": str(source)}
    try:
        assert getattr(resolve(where), "name", None) == "rollart_test_only"
        assert resolve(where) is resolve(where)
        with pytest.raises(AttributeError, match=r"anything.txt\) has no Absent"):
            resolve({**where, "qualname": "Absent"})
    finally:
        del sys.modules["rollart_test_only"]


def test_a_script_is_loaded_without_running_its_main_part(tmp_path: Path) -> None:
    source = tmp_path / "script.py"
    source.write_text("def f(): ...\nif __name__ == '__main__': raise SystemExit\n")
    main = sys.modules["__main__"]
    try:
        found = resolve({"module": "__main__", "qualname": "f", "source": str(source)})
        assert callable(found)
    finally:
        sys.modules["__main__"] = main


def test_no_such_module_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="rollart_absent"):
        resolve({"module": "rollart_absent", "qualname": "f", "source": ""})


def test_what_has_no_name_is_copied() -> None:
    factor = 3
    for function in (lambda x: factor * x, functools.partial(pow, 3)):
        where = json.loads(json.dumps(reference(function, source=Path("pipeline.py"))))
        found = resolve(where)
        assert callable(found)
        assert found(1) == 3
