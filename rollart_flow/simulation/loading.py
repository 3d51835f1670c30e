"""Loads the scenarios that a word on the command line names: a named scenario, or a Python file.

A scenario file runs as a pipeline file does; an error in it becomes one line with its place.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.pipeline.loading import read_source, run_source
from rollart_flow.simulation.named import SCENARIOS
from rollart_flow.simulation.scenario import Scenario


def load_scenarios(word: str) -> tuple[Scenario, ...]:
    """The scenarios that a word names; a name goes before a file (`./small` is a file).

    Raises:
        SettingsError: the word names no scenario, or the file or a scenario in it is wrong.
    """
    if word in SCENARIOS:
        return (SCENARIOS[word](),)
    if not (word.endswith(".py") or Path(word).is_file()):
        raise SettingsError(_unknown(word))
    try:
        return _defined(run_source(read_source(word, "scenario"), word), word)
    except PipelineError as error:
        raise SettingsError(str(error)) from error


def _unknown(word: str) -> str:
    close = get_close_matches(word, SCENARIOS, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return (
        f"no scenario {word!r}{meant}: take one of {', '.join(SCENARIOS)}, or a Python file with a "
        "module-level `scenario`"
    )


def _defined(names: Mapping[str, object], path: str) -> tuple[Scenario, ...]:
    """The `scenario` or the `scenarios` of a file."""
    if "scenario" in names:
        found: object = (names["scenario"],)
    elif "scenarios" in names:
        found = names["scenarios"]
    else:
        raise SettingsError(
            f"{path}: no `scenario` at module level; end the file with scenario = Scenario(...), "
            "or scenarios = [...]"
        )
    if not isinstance(found, Iterable):
        raise SettingsError(f"{path}: `scenarios` is a {type(found).__name__}, not a list of them")
    scenarios = []
    for one in found:
        if not isinstance(one, Scenario):
            raise SettingsError(f"{path}: a scenario is a {type(one).__name__}, not a Scenario")
        scenarios.append(one)
    if not scenarios:
        raise SettingsError(f"{path}: `scenarios` is empty")
    return tuple(scenarios)
