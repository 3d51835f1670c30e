"""Layers of settings from outside the pipeline file: a file, environment variables, `-s` words.

A later layer wins over an earlier one, also if the two spell a key differently. Each value is
checked under the name of its layer, so that an error says where the wrong value stands.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart_flow.errors import SettingsError
from rollart_flow.pipeline.graph import Graph
from rollart_flow.pipeline.overrides import Setting, check_text, find_setting, settings_of

VARIABLES = "ROLLART_SET_"
"""Prefix of environment variables that are settings: ROLLART_SET_TRAIN__STEPS is train.steps."""
_FORMS = (".yaml", ".yml", ".toml", ".json")


@dataclass(frozen=True)
class SettingsLayer:
    """Settings of one origin, as text by key."""

    origin: str
    """Name of the origin in errors, such as the path of a file; empty for `-s`."""
    values: Mapping[str, str]


def layer_of_file(path: str | Path) -> SettingsLayer:
    """Read settings from a YAML, TOML or JSON file; a mapping in it stands for a part of a key.

    Raises:
        SettingsError: the file cannot be read, or does not hold a mapping of settings.
    """
    found = _parsed(Path(path))
    if not isinstance(found, Mapping):
        raise SettingsError(f"{path}: it holds no settings; write lines such as `train.steps: 20`")
    return SettingsLayer(str(path), {str(key): _text(value) for key, value in found.items()})


def layer_of_variables(environ: Mapping[str, str] | None = None) -> SettingsLayer:
    """Return the settings among environment variables; two underscores stand for a dot."""
    found = os.environ if environ is None else environ
    return SettingsLayer(
        VARIABLES + "...",
        {
            name.removeprefix(VARIABLES).replace("__", "."): value
            for name, value in sorted(found.items())
            if name.startswith(VARIABLES)
        },
    )


def merged(pipeline: Graph, layers: Sequence[SettingsLayer]) -> dict[str, str]:
    """Return the values of all layers by the key of the layer that won, each one checked.

    Raises:
        SettingsError: a key is unknown or stands twice in a layer, or a value is wrong.
    """
    known = settings_of(pipeline)
    chosen: dict[str, tuple[str, str]] = {}
    for layer in layers:
        own: dict[str, tuple[str, str]] = {}
        try:
            for key, text in _spread(layer.values, known, layer.origin.startswith(VARIABLES)):
                setting = find_setting(key, known)
                if (other := own.setdefault(setting.key, (key, text))) != (key, text):
                    said = f"{other[0]} and {key} are the same setting; give one of them"
                    raise SettingsError(said)
                check_text(setting, text)
        except SettingsError as error:
            raise SettingsError(
                f"{layer.origin}: {error}" if layer.origin else str(error)
            ) from None
        chosen |= own
    return dict(chosen.values())


def _spread(
    values: Mapping[str, str], known: Mapping[str, Setting], shouted: bool
) -> list[tuple[str, str]]:
    """Return single settings; an object at a key that is no setting holds the rest of keys."""
    found: list[tuple[str, str]] = []
    for given, text in values.items():
        key = _spelled(given, known) if shouted else given
        inner = _object(text)
        if inner is None or _is_setting(key, known):
            found.append((key, text))
        else:
            within = {f"{key}.{name}": _text(value) for name, value in inner.items()}
            found += _spread(within, known, shouted=False)
    return found


def _is_setting(key: str, known: Mapping[str, Setting]) -> bool:
    try:
        find_setting(key, known)
    except SettingsError:
        return False
    return True


def _spelled(shouted: str, known: Mapping[str, Setting]) -> str:
    """Return a key of a variable in the letters of the setting that it means."""
    low = shouted.lower()
    full = [key for setting in known.values() for key in setting.keys]
    fits = (key[-len(low) :] for key in full if f".{key}".lower().endswith(f".{low}"))
    return next(fits, low)


def _object(text: str) -> Mapping[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _text(value: object) -> str:
    """Return a value of a file as `-s` would spell it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _parsed(path: Path) -> object:
    form = path.suffix.lower()
    if form not in _FORMS:
        raise SettingsError(f"{path}: settings are read from files that end in {', '.join(_FORMS)}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file of settings") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}") from error
    try:
        return _loaded(form, text)
    except Exception as error:  # each parser has errors of its own
        said = " ".join(str(error).replace("^", "").split()).rstrip(": ")
        raise SettingsError(f"{path}: is no {form.removeprefix('.').upper()}: {said}") from error


def _loaded(form: str, text: str) -> object:
    if form == ".json":
        return json.loads(text)
    if form == ".toml":
        import tomllib

        return tomllib.loads(text)
    import yaml

    return yaml.safe_load(text)
