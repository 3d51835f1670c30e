"""Whether a pipeline file still builds what a run was made with.

A pipeline file is Python: it may read an environment variable, a file or a folder that has changed
since. A run is resumed with the settings that it was made with only.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rollart_flow.errors import SettingsError
from rollart_flow.pipeline import Pipeline
from rollart_flow.store import RunInfo

_DEFINITION = re.compile(r"[\w.]+:(?=[\w.<>]+)")
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")


def check_as_recorded(pipeline: Pipeline, info: RunInfo) -> None:
    """Refuse a pipeline that differs from what a run was made with.

    Settings that one of both does not have, as those of another version of this library, are not
    compared. Of a run of an earlier version only the policy is, since defaults have changed.

    Raises:
        SettingsError: names the first different setting and both values.
    """
    now = json.loads(json.dumps(pipeline.settings()))
    compared = {"seed", "policy", "nodes"} if info.term else {"policy"}
    for name in sorted(compared & info.settings.keys(), reverse=True):
        for where, was, value in _differences(name, info.settings[name], now[name]):
            raise SettingsError(
                f"run {info.name}: its pipeline file now gives {where} = {value!r}, but the run "
                f"was made with {was!r}; restore what the file reads, such as the environment, or "
                "`rollart fork` the run to change it"
            )


def _differences(where: str, was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """(key, recorded value, present value) of each setting that differs."""
    by_domain = where.endswith(".by_domain")  # whose keys are no names of settings
    if isinstance(was, Mapping) and isinstance(now, Mapping) and not by_domain:
        for key in sorted((was.keys() & now.keys()) - {"type"}):
            yield from _differences(f"{where}.{key}".removeprefix("nodes."), was[key], now[key])
    elif _plain(was) != _plain(now):
        yield where, was, now


def _plain(value: Any) -> str:
    """A value without what may differ between two processes: modules and addresses of objects."""
    return _ADDRESS.sub("", _DEFINITION.sub("", json.dumps(value, sort_keys=True)))
