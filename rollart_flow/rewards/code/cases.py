"""Tests of a task, read from its payload: programs with input and output, or unit tests.

| value | tests |
|---|---|
| `[{"input": "1 2", "output": "3"}, ...]` | a program reads the input and prints the output |
| `{"inputs": [...], "outputs": [...]}` | the same, as two lists |
| `["assert add(1, 2) == 3", ...]` | unit tests, one for each text |
| `"def check(candidate): ..."` | one unit test |

A text that is JSON of one of these forms stands for it, as data sets often have it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollart_flow.errors import RewardFailedError

_INPUTS, _OUTPUTS = ("input", "inputs", "stdin"), ("output", "outputs", "stdout")


@dataclass(frozen=True, slots=True)
class ProgramTest:
    """The program reads `stdin` and must print `stdout`."""

    stdin: str
    stdout: str

    def passes(self, printed: str) -> bool:
        """Return whether the output is right; spaces at the end of lines and texts are ignored."""
        return _lines(printed) == _lines(self.stdout)


@dataclass(frozen=True, slots=True)
class UnitTest:
    """Python code that raises if the answer is wrong."""

    code: str


Tests = tuple[ProgramTest | UnitTest, ...]


def read_tests(value: object, where: str) -> Tests:
    """Return the tests that a value describes.

    Raises:
        RewardFailedError: the value has none of the forms; the message begins with `where`.
    """
    found = _read(_from_json(value))
    if not found:
        forms = 'a list of {"input": ..., "output": ...} or of code, or code'
        raise RewardFailedError(f"{where}: {str(value)[:80]!r} holds no tests; give {forms}")
    return found


def _from_json(value: object) -> object:
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value  # code, such as a list display
    return value


def _read(value: object) -> Tests | None:
    if isinstance(value, str):
        return (UnitTest(value),) if value.strip() else None
    if isinstance(value, Mapping):
        inputs, outputs = _value(value, _INPUTS), _value(value, _OUTPUTS)
        if isinstance(inputs, str) and isinstance(outputs, str):
            inputs, outputs = [inputs], [outputs]
        if not isinstance(inputs, list) or not isinstance(outputs, list):
            return None
        if len(inputs) != len(outputs):
            return None
        return _programs(list(zip(inputs, outputs, strict=True)))
    if isinstance(value, Sequence):
        if all(isinstance(item, str) and item.strip() for item in value):
            return tuple(UnitTest(item) for item in value)
        if all(isinstance(item, Mapping) for item in value):
            return _programs([(_value(item, _INPUTS), _value(item, _OUTPUTS)) for item in value])
    return None


def _programs(pairs: Sequence[tuple[object, object]]) -> tuple[ProgramTest, ...] | None:
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        return None
    return tuple(ProgramTest(str(given), str(wanted)) for given, wanted in pairs)


def _value(row: Mapping[str, object], names: Sequence[str]) -> object:
    return next((row[name] for name in names if name in row), None)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
