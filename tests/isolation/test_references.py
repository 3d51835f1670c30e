"""How classes and functions are named to another process."""

import functools
import json
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollart_flow.isolation.references import reference, resolve


@dataclass(frozen=True, slots=True)
class Scaled:
    """An instance that is called like a function."""

    factor: float
    of: object = len

    def __call__(self, text: str) -> float:
        return self.factor * len(text)


class Local:
    """What plain pickle does not take."""

    def __init__(self) -> None:
        self.module = threading


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


def test_an_instance_travels_with_its_class_by_name() -> None:
    where = json.loads(json.dumps(reference(Scaled(2.0, of=json.dumps))))
    assert list(where) == ["instance"]
    assert resolve(where) == Scaled(2.0, of=json.dumps)


def test_an_instance_of_a_pipeline_file_is_made_of_what_the_file_defines(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text("class Mine:\n    pass\ndef double(x):\n    return 2 * x\n")
    held = {"module": "rollart_test_mine", "source": str(source)}
    double = resolve({**held, "qualname": "double"})
    mine = resolve({**held, "qualname": "Mine"})
    try:
        assert isinstance(mine, type)
        instance = mine()
        instance.function = double
        found = resolve(reference(instance, source))
        assert type(found) is mine
        assert getattr(found, "function", None) is double
    finally:
        del sys.modules["rollart_test_mine"]


def test_an_instance_may_hold_a_closure_and_what_only_cloudpickle_takes() -> None:
    factor = 3
    scaled = resolve(reference(Scaled(1.0, of=lambda x: factor * x)))
    assert isinstance(scaled, Scaled)
    assert callable(scaled.of)
    assert scaled.of(2) == 6
    assert getattr(resolve(reference(Local())), "module", None) is threading
