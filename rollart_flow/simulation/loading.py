"""Scenarios by name, and those that a user's file defines."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.pipeline.loading import read_source, run_source
from rollart_flow.simulation.hardware import H20, H800, QWEN3_8B, QWEN3_14B
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.transfers import INTRA_CLUSTER
from rollart_flow.simulation.workloads import FROZEN_LAKE, GEM_GAME, GEM_MATH, SWE, WEB


def small() -> Scenario:
    """Qwen3-8B on two domains, 4 H20 to roll out and 4 H800 to train."""
    return Scenario(
        name="small",
        model=QWEN3_8B,
        domains=(GEM_MATH, FROZEN_LAKE),
        rollout=(Pool(H20, 4),),
        training=Pool(H800, 4),
        batch_size=64,
        group_size=8,
    )


def swe() -> Scenario:
    """Qwen3-8B on SWE, 32 H800 that roll out and train in turns (ROLLART Figure 3)."""
    return Scenario(
        name="swe",
        model=QWEN3_8B,
        domains=(SWE,),
        rollout=(),
        training=Pool(H800, 32),
        batch_size=128,
        group_size=8,
        shared=True,
        transfer=INTRA_CLUSTER,
    )


def mix() -> Scenario:
    """Qwen3-14B on four domains, each on the devices that suit it (ROLLART section 7.1)."""
    return Scenario(
        name="mix",
        model=QWEN3_14B,
        domains=(WEB, FROZEN_LAKE, GEM_MATH, GEM_GAME),
        rollout=(Pool(H800, 64), Pool(H20, 32)),
        training=Pool(H800, 32),
        batch_size=512,
        group_size=8,
        tensor_parallel=2,
        hw_affinity={"frozenlake": "H800", "web": "H800", "default": "H20"},
    )


SCENARIOS: Mapping[str, Callable[[], Scenario]] = {"small": small, "swe": swe, "mix": mix}
"""Scenarios by name."""


def load_scenarios(word: str) -> tuple[Scenario, ...]:
    """The scenarios that a word names; a name goes before a file (`./small` is a file).

    Raises SettingsError if it names none, or the file or a scenario in it is wrong.
    """
    if word in SCENARIOS:
        return (SCENARIOS[word](),)
    if not (word.endswith(".py") or Path(word).is_file()):
        close = get_close_matches(word, SCENARIOS, n=1)
        meant = f" (did you mean {close[0]}?)" if close else ""
        raise SettingsError(
            f"no scenario {word!r}{meant}: take one of {', '.join(SCENARIOS)}, or a Python file "
            "with a module-level `scenario`"
        )
    try:
        return _defined(run_source(read_source(word, "scenario"), word), word)
    except PipelineError as error:
        raise SettingsError(str(error)) from error


def _defined(names: Mapping[str, object], path: str) -> tuple[Scenario, ...]:
    found = (names["scenario"],) if "scenario" in names else names.get("scenarios")
    if "scenario" not in names and "scenarios" not in names:
        raise SettingsError(
            f"{path}: no `scenario` at module level; end the file with scenario = Scenario(...), "
            "or scenarios = [...]"
        )
    if not isinstance(found, Iterable):
        raise SettingsError(f"{path}: `scenarios` is a {type(found).__name__}, not a list of them")
    scenarios = tuple(found)
    for one in scenarios:
        if not isinstance(one, Scenario):
            raise SettingsError(f"{path}: a scenario is a {type(one).__name__}, not a Scenario")
    if not scenarios:
        raise SettingsError(f"{path}: `scenarios` is empty")
    return scenarios
