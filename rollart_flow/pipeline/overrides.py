"""Settings given from outside the pipeline file, as text: `-s alpha=2 -s optimizer.lr=0.001`.

A setting belongs to an owner: a node by its name, a domain by its name, `policy` or `pipeline`.
Its key is `owner.setting`, with more dots for nested settings. A suffix of a key is accepted if it
matches only one key, or only one key among those with the fewest dots. The pipeline is rebuilt from
the changed arguments, so that every check of the file is repeated for the result.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, get_type_hints

from pydantic import (
    BaseModel,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
)

from rollart_flow.envs.base import Domain
from rollart_flow.errors import SettingsError
from rollart_flow.pipeline.messages import explain, unknown_key
from rollart_flow.pipeline.nodes import Evaluate, Node, Tasks
from rollart_flow.pipeline.settings import fields_of, is_settings

if TYPE_CHECKING:
    from rollart_flow.pipeline.dag import Pipeline

_STRUCTURE = frozenset({"up", "policy", "sources", "domains", "name", "fn", "expression"})
"""Fields of nodes that hold the graph or code, and cannot be overridden."""
_WHOLE = frozenset({"schedule", "lora"})
"""Fields of nodes that hold objects and are set as a whole, by a name or a folder."""
_REPLACES = {"schedule": "alpha"}
"""Arguments that, when overridden, reset another argument."""

Values: TypeAlias = Mapping[tuple[str, ...], Any]
"""New values by path from an owner."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One value that can be overridden."""

    owner: str
    path: tuple[str, ...]
    """Names of fields from the owner to the value."""
    hint: Any
    """Type that a value must have."""

    @property
    def key(self) -> str:
        return ".".join((self.owner, *self.path))


def settings_of(pipeline: "Pipeline") -> dict[str, Setting]:
    """Every setting that can be overridden, by its full key."""
    found = [Setting("pipeline", ("seed",), int)]
    found += _leaves("policy", (), pipeline.policy, frozenset())
    for domain in _domains(pipeline).values():
        found += _leaves(domain.name, (), domain, frozenset())
    for node in pipeline.nodes:
        found += _leaves(node.name, (), node, _STRUCTURE)
    return {setting.key: setting for setting in found}


def override(pipeline: "Pipeline", changes: Mapping[str, str]) -> "Pipeline":
    """Build a pipeline with settings replaced, as `Pipeline.override` describes."""
    known = settings_of(pipeline)
    by_owner: dict[str, dict[tuple[str, ...], Any]] = {}
    for key, text in changes.items():
        setting = _resolve(key, known)
        by_owner.setdefault(setting.owner, {})[setting.path] = _parse(setting, text)
    return _rebuild(pipeline, by_owner)


def _leaves(
    owner: str, path: tuple[str, ...], value: Any, leave_out: Iterable[str]
) -> list[Setting]:
    """Settings below a settings object."""
    hints = _hints(value)
    found: list[Setting] = []
    for name, item in fields_of(value).items():
        if name in leave_out:
            continue
        if is_settings(item) and not (name in _WHOLE and isinstance(value, Node)):
            found += _leaves(owner, (*path, name), item, ())
        else:
            found.append(Setting(owner, (*path, name), hints.get(name, type(item))))
    return found


def _hints(value: Any) -> dict[str, Any]:
    try:
        return get_type_hints(type(value), include_extras=True)
    except NameError:
        # The class uses a type that only a type checker imports: use the types of the values.
        return {}


def _resolve(key: str, known: Mapping[str, Setting]) -> Setting:
    """The setting that a key or a suffix of a key refers to."""
    if key in known:
        return known[key]
    fits = [full for full in known if full.endswith(f".{key}")]
    shallow = [full for full in fits if full.count(".") == min(fit.count(".") for fit in fits)]
    if len(shallow) == 1:
        return known[shallow[0]]
    if fits:
        raise SettingsError(f"setting {key!r} is not unique; say which: {', '.join(fits)}")
    owner = f"{key.split('.')[0]}."
    of_owner = [full for full in known if full.startswith(owner)]
    raise SettingsError(f"no setting {unknown_key(key, of_owner or known)}")


def _parse(setting: Setting, text: str) -> Any:
    """Parse a value: numbers, words and switches as plain text, other values as JSON."""
    try:
        adapter = TypeAdapter(setting.hint)
    except PydanticSchemaGenerationError:
        raise SettingsError(f"{setting.key} is an object; set it in the pipeline file") from None
    readings = (adapter.validate_strings, adapter.validate_json)
    failures: list[ValidationError] = []
    for read in readings:
        try:
            return read(text)
        except ValidationError as error:
            failures.append(error)
    shown = failures[-1] if text[:1] in ("[", "{") else failures[0]
    raise SettingsError(explain(shown, owner=setting.key)) from None


def _domains(pipeline: "Pipeline") -> dict[str, Domain]:
    evaluated = pipeline.evaluate.domains if pipeline.evaluate else ()
    return {domain.name: domain for domain in (*evaluated, *pipeline.tasks.domains)}


def _fields(value: Any, changes: Values) -> dict[str, Any]:
    """Fields of a settings object that change, with their new values."""
    changed: dict[str, Any] = {}
    for name in {path[0] for path in changes}:
        inner = {path[1:]: item for path, item in changes.items() if path[0] == name}
        changed[name] = inner[()] if () in inner else _replaced(getattr(value, name), inner)
    return changed


def _replaced(value: Any, changes: Values) -> Any:
    """A settings object with values at paths replaced, checked again by its own class."""
    changed = _fields(value, changes)
    if not changed:
        return value
    if isinstance(value, BaseModel):
        return type(value).model_validate({**fields_of(value), **changed})
    return dataclasses.replace(value, **changed)


def _rebuild(pipeline: "Pipeline", by_owner: Mapping[str, Values]) -> "Pipeline":
    """Build every node again, upstream first, from its changed arguments."""
    policy = _replaced(pipeline.policy, by_owner.get("policy", {}))
    domains = {
        name: _replaced(domain, by_owner.get(name, {}))
        for name, domain in _domains(pipeline).items()
    }
    rebuilt: dict[int, Node] = {}
    for node in pipeline.nodes:
        changed = _fields(node, by_owner.get(node.name, {})) | _inputs(node, domains)
        for stands, replaced in _REPLACES.items():
            if stands in changed:
                changed.setdefault(replaced, None)
        if node.upstream:
            (changed["up"],) = (rebuilt[id(up)] for up in node.upstream)
        if hasattr(node, "policy"):
            changed["policy"] = policy
        rebuilt[id(node)] = node.recipe.rebuild(**changed)
    outputs = (rebuilt[id(output)] for output in pipeline.outputs)
    seed = by_owner.get("pipeline", {}).get(("seed",), pipeline.seed)
    return type(pipeline)(pipeline.name, *outputs, seed=seed)


def _inputs(node: Node, domains: Mapping[str, Domain]) -> dict[str, Any]:
    """Sources and domains of a node, with the domains that changed."""
    if isinstance(node, Evaluate):
        return {"domains": tuple(domains[domain.name] for domain in node.domains)}
    if not isinstance(node, Tasks):
        return {}
    own = {source.name for source in node.sources if isinstance(source, Domain)}
    return {
        "sources": tuple(
            domains[source.name] if isinstance(source, Domain) else source
            for source in node.sources
        ),
        "domains": tuple(domains[d.name] for d in node.domains if d.name not in own),
    }
