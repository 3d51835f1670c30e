"""Loader of pipeline files: Python files with a module-level `pipeline`.

The file runs as a separate module that is not left in `sys.modules`, so that functions and classes
defined in it are pickled by value. Any error in it becomes one line with the file and line number.
"""

import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from rollart_flow.errors import PipelineError, RollartError
from rollart_flow.pipeline.caches import send_caches_by_value
from rollart_flow.pipeline.dag import Pipeline
from rollart_flow.pipeline.layers import SettingsLayer, merged

_MODULE = "rollart_pipeline"


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline with its source text, which is stored with the run."""

    pipeline: Pipeline
    """The pipeline after the overrides, with the folder of its policy's model."""
    source_text: str
    path: str
    """Path of the file, as given."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings from outside the file, of all layers."""


def load_pipeline(
    path: str | Path,
    overrides: Mapping[str, str] | None = None,
    layers: Sequence[SettingsLayer] = (),
) -> LoadedPipeline:
    """Run a pipeline file and apply overrides.

    Args:
        path: path of the file.
        overrides: settings as text by key, as of `-s`.
        layers: settings of other origins, which the overrides win over; later ones win.

    Raises:
        PipelineError: the file cannot be read, fails, or has no `pipeline`; names file and line.
        SettingsError: an override is wrong, or there is no model of the policy.
    """
    return load_source(read_source(path, "pipeline"), path, overrides, layers)


def load_source(
    source_text: str,
    path: str | Path,
    overrides: Mapping[str, str] | None = None,
    layers: Sequence[SettingsLayer] = (),
) -> LoadedPipeline:
    """Load a pipeline from source text, like `load_pipeline`; `path` is used in messages only."""
    pipeline = pipeline_in(source_text, path)
    changes = dict(overrides or {})
    if layers:
        changes = merged(pipeline, [*layers, SettingsLayer("", changes)])
    if changes:
        pipeline = pipeline.override(changes)
    try:
        located = pipeline.located()
    except RollartError as error:
        raise type(error)(f"{path}: {error}") from error
    return LoadedPipeline(located, source_text, str(path), changes)


def pipeline_in(source_text: str, path: str | Path) -> Pipeline:
    """Return the pipeline of a source text as it stands there, whose model need not be here.

    Raises:
        PipelineError: the source fails or has no `pipeline`; names file and line.
    """
    name = str(path)
    found = run_source(source_text, name).get("pipeline")
    if found is None:
        raise PipelineError(
            f"{name}: no `pipeline` at module level; end the file with pipeline = Pipeline(...)"
        )
    if not isinstance(found, Pipeline):
        raise PipelineError(f"{name}: `pipeline` is a {type(found).__name__}, not a Pipeline")
    return found


def read_source(path: str | Path, kind: str) -> str:
    """Text of a user's file of a kind; PipelineError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PipelineError(f"{path}: no such {kind} file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}") from error


def run_source(source_text: str, name: str) -> dict[str, object]:
    """Run a user's file and return the names that it defines at module level.

    Raises:
        PipelineError: the file fails; the message names file and line.
        RollartError: an error of this library raised in the file, with file and line added.
    """
    send_caches_by_value()
    module = ModuleType(_MODULE)
    module.__file__ = name
    before = sys.modules.get(_MODULE)
    sys.modules[_MODULE] = module  # dataclasses look their module up while they are made
    try:
        exec(compile(source_text, name, "exec"), module.__dict__)
    except SyntaxError as error:
        raise PipelineError(f"{error.filename}:{error.lineno}: {error.msg}") from error
    except RollartError as error:
        raise type(error)(f"{_where(error, name)}: {error}") from error
    except Exception as error:  # the file is the user's: anything may be raised
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise PipelineError(f"{_where(error, name)}: {said}") from error
    finally:
        sys.modules.pop(_MODULE)
        if before is not None:
            sys.modules[_MODULE] = before
    return module.__dict__


def _where(error: BaseException, name: str) -> str:
    """File and line of the last statement of the file that led to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == name]
    return f"{name}:{lines[-1]}" if lines else name
