"""Arguments and options that several commands share."""

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import typer

from rollart_flow.cli.completion import run_names_with
from rollart_flow.errors import SettingsError
from rollart_flow.pipeline import LoadedPipeline, load_pipeline
from rollart_flow.pipeline.layers import layer_of_file, layer_of_variables

RunName: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Name of a run in the store, its folder, or its URI.",
        autocompletion=run_names_with,
    ),
]
PipelineFile: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE", help="Python file with a module-level `pipeline`.")
]
Store: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Folder or URI of the runs; ./runs or $ROLLART_STORE unless given."),
]
NewName: TypeAlias = Annotated[
    str | None, typer.Option("--name", help="Name of the new run; one is made up unless given.")
]
Changes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change a setting, e.g. -s alpha=2."),
]
SettingsFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings from a YAML, TOML or JSON file; -s wins."
    ),
]
Address: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Ray cluster: `auto` or HOST:PORT; one on this machine unless given."),
]
Executor: TypeAlias = Annotated[
    str,
    typer.Option(help="Where the run is executed: ray, or inline in this process, without Ray."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def load(file: str, config: str | None, changes: Iterable[str] | None) -> LoadedPipeline:
    """Load a pipeline with the settings of a file, of variables ROLLART_SET_... and of `-s`.

    Raises:
        PipelineError: the pipeline file is wrong.
        SettingsError: a setting is wrong; the message names where it stands.
    """
    files = [] if config is None else [layer_of_file(config)]
    layers = [layer for layer in (*files, layer_of_variables()) if layer.values]
    return load_pipeline(file, settings_from(changes), layers)


def settings_from(changes: Iterable[str] | None) -> dict[str, str]:
    """Overrides from `key=value` words.

    Raises:
        SettingsError: a word without a key or without `=`.
    """
    found: dict[str, str] = {}
    for change in changes or ():
        key, equals, value = change.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"-s {change!r} is not key=value, such as -s alpha=2")
        found[key.strip()] = value.strip()
    return found
