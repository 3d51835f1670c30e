"""Whether a pipeline file still builds what a run was made with.

A pipeline file is Python: it may read an environment variable, a file or a folder that has changed
since. A run is resumed with the settings that it was made with only.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from rollart_flow.errors import SettingsError
from rollart_flow.models.repositories import at_recorded_commit
from rollart_flow.pipeline import LoadedPipeline, Pipeline
from rollart_flow.pipeline.layers import SettingsLayer
from rollart_flow.pipeline.loading import load_source
from rollart_flow.store import Run, RunInfo
from rollart_flow.store.cache import local_file
from rollart_flow.store.layout import pipeline_uri, read_pipeline
from rollart_flow.text import counted

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


def load_recorded(uri: str, info: RunInfo, steps: int | None = None) -> LoadedPipeline:
    """Load the pipeline file that is stored with a run, with the run's settings.

    A repository of the Hub is that of the commit that the run began with, wherever its branch is.

    Args:
        uri: address of the run.
        info: information of the run.
        steps: number of training steps, if another one than the run's.

    Raises:
        PipelineError: the file fails.
        SettingsError: a setting is wrong.
    """
    recorded = {key: str(value) for key, value in info.overrides.items()}
    changes = {} if steps is None else {"train.steps": str(steps)}
    layers = [SettingsLayer("", recorded)] if recorded else []
    policy = info.settings.get("policy", {})
    with at_recorded_commit(policy.get("path"), policy.get("revision", "")):
        return load_source(read_pipeline(uri), local_file(pipeline_uri(uri)), changes, layers)


def with_steps(run: Run, loaded: LoadedPipeline) -> RunInfo:
    """Return the information of a run that goes on to the steps of a pipeline.

    Raises:
        SettingsError: the run has trained that many steps already.
    """
    info, steps = run.info, loaded.pipeline.train.steps
    trained = run.steps.select(pl.col("step").max()).collect().item() or 0
    if steps <= trained:
        raise SettingsError(
            f"run {info.name} has trained {counted(trained, 'step')}; give more, such as "
            f"-s steps={2 * trained}, or `rollart fork` it at an earlier one"
        )
    settings = {**info.settings, "nodes": {**info.settings.get("nodes", {})}}
    for name, node in settings["nodes"].items():
        if node.get("kind") == "train":
            settings["nodes"][name] = {**node, "steps": steps}
    return replace(info, settings=settings, overrides=dict(loaded.overrides))


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
