"""Settings given from outside the pipeline file, as text: `-s alpha=2 -s optimizer.lr=0.001`.

A setting belongs to an owner: a node by its name, a domain by its name, `policy` or `pipeline`.
Its key is `owner.setting`, with more dots for nested settings: `rollout.temperature`, which is also
`rollout.sampling.temperature`, by way of the nested value that holds it. A suffix of a key is
accepted if it matches only one setting, or only one among those with the fewest dots. The pipeline
is rebuilt from the changed arguments, so that every check of the file is repeated for the result.

pydantic reads the texts, and is loaded when there is one.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_type_hints

from rollart_flow.envs.base import Domain
from rollart_flow.errors import SettingsError
from rollart_flow.fields import fitted, shortened
from rollart_flow.models.policy import Policy
from rollart_flow.pipeline.by_domain import check_domains
from rollart_flow.pipeline.described import fields_of, is_model, is_settings
from rollart_flow.pipeline.generating import GeneratingNode
from rollart_flow.pipeline.graph import Graph
from rollart_flow.pipeline.keywords import keywords
from rollart_flow.pipeline.learning import Evaluate
from rollart_flow.pipeline.node import Node, unknown_key
from rollart_flow.pipeline.producing import Tasks
from rollart_flow.pipeline.scoring import Reward
from rollart_flow.secret import check_no_key
from rollart_flow.trackers.base import Tracker
from rollart_flow.trackers.registry import named_trackers

if TYPE_CHECKING:
    from pydantic import ValidationError

G = TypeVar("G", bound=Graph)

BY_DOMAIN = "by_domain"
"""Setting of a node that holds settings by domain."""
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
    within: str = ""
    """Name of the owner's nested value that holds it; empty: the owner itself."""
    read: Callable[[str], Any] | None = None
    """Converts the text to the value; None: the type does."""

    @property
    def key(self) -> str:
        return ".".join((self.owner, *self.path))

    @property
    def keys(self) -> tuple[str, ...]:
        """Every full key: the known one, and the one by way of the nested value."""
        nested = ".".join((self.owner, self.within, *self.path))
        return (self.key, nested) if self.within else (self.key,)


def settings_of(pipeline: Graph) -> dict[str, Setting]:
    """Every setting that can be overridden, by its full key."""
    found = [
        Setting("pipeline", ("seed",), int),
        Setting("pipeline", ("trackers",), tuple[str, ...], read=_read_trackers),
        Setting("pipeline", ("prices",), dict[str, float]),
        *_leaves("pipeline", ("alarms",), pipeline.alarms),
    ]
    found += _leaves("policy", (), pipeline.policy)
    for domain in _domains(pipeline).values():
        found += _leaves(domain.name, (), domain)
    for node in pipeline.nodes:
        found += _of_node(node)
        found += _by_domain(node, _domains(pipeline))
    return {setting.key: setting for setting in found}


def override(pipeline: G, changes: Mapping[str, str]) -> G:
    """Build a pipeline with settings replaced, as `Pipeline.override` describes."""
    known = settings_of(pipeline)
    by_owner: dict[str, dict[tuple[str, ...], Any]] = {}
    given: dict[str, str] = {}
    for key, text in changes.items():
        setting = find_setting(key, known)
        check_no_key(setting.key, text)
        if (other := given.setdefault(setting.key, key)) != key:
            raise SettingsError(f"{other} and {key} are the same setting; give one of them")
        by_owner.setdefault(setting.owner, {})[setting.path] = _parse(setting, text)
    policy = _replaced(pipeline.policy, by_owner.get("policy", {}))
    return _rebuild(pipeline, policy, by_owner)


def with_policy(pipeline: G, policy: Policy) -> G:
    """Build a pipeline with another policy."""
    return _rebuild(pipeline, policy, {})


def _of_node(node: Node) -> list[Setting]:
    found: list[Setting] = []
    for name, keyword in keywords(type(node)).items():
        value = getattr(node, name)
        if keyword.part or name == "name":
            continue
        if is_settings(value) and keyword.read is None:
            inner = _leaves(node.name, (name,), value)
            found += [dataclasses.replace(each, within=keyword.within) for each in inner]
        else:
            found.append(Setting(node.name, (name,), keyword.hint, keyword.within, keyword.read))
    return found


def _by_domain(node: Node, domains: Iterable[str]) -> list[Setting]:
    """The settings of a node that may differ by domain, for each domain."""
    if not isinstance(node, GeneratingNode | Reward):
        return []
    known = keywords(type(node))
    own = [known[name] for name in node.for_domains() if not known[name].part]
    return [
        Setting(node.name, (BY_DOMAIN, domain, each.name), each.hint, read=each.read)
        for domain in domains
        for each in own
    ]


def _leaves(owner: str, path: tuple[str, ...], value: Any) -> list[Setting]:
    try:
        hints = get_type_hints(type(value), include_extras=True)
    except NameError:  # the class uses a type that only a type checker imports
        hints = {}
    found: list[Setting] = []
    for name, item in fields_of(value).items():
        if is_settings(item):
            found += _leaves(owner, (*path, name), item)
        else:
            found.append(Setting(owner, (*path, name), hints.get(name, type(item))))
    return found


def find_setting(key: str, known: Mapping[str, Setting]) -> Setting:
    """Return the setting that a key or a suffix of a key refers to.

    Raises:
        SettingsError: no setting has the key, or several do.
    """
    by_key = {each: setting for setting in known.values() for each in setting.keys}
    if key in by_key:
        return by_key[key]
    fits = list({s.key: s for full, s in by_key.items() if full.endswith(f".{key}")}.values())
    if key == "name" and fits:  # the user means the run
        which = ", ".join(fit.key for fit in fits)
        raise SettingsError(f"a run gets its name by --name; write {which} whole if you mean that")
    fewest = min((len(fit.path) for fit in fits), default=0)
    shallow = [fit for fit in fits if len(fit.path) == fewest]
    if len(shallow) == 1:
        return shallow[0]
    if fits:
        which = ", ".join(fit.key for fit in fits)
        raise SettingsError(f"setting {key!r} is not unique; say which: {which}")
    owner, _, rest = key.partition(f".{BY_DOMAIN}.")
    if rest:
        names = {s.path[1]: None for s in known.values() if s.path[0] == BY_DOMAIN and s.path[1:]}
        check_domains([rest.split(".")[0]], names, f"{owner}.{BY_DOMAIN}")
    whole = [full for full, each in known.items() if bool(rest) == (each.path[0] == BY_DOMAIN)]
    owner = f"{key.split('.')[0]}."
    of_owner = [full for full in whole if full.startswith(owner)]
    raise SettingsError(f"no setting {unknown_key(key, of_owner or whole)}")


def check_text(setting: Setting, text: str) -> None:
    """Check that a text can be a value of a setting, before it is known to be used.

    Raises:
        SettingsError: names the setting and what is wrong with the text.
    """
    check_no_key(setting.key, text)
    _parse(setting, text)


def _parse(setting: Setting, text: str) -> Any:
    """Parse a value: numbers, words and switches as plain text, other values as JSON."""
    if setting.read is not None:
        return setting.read(text)
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(setting.hint)
    except PydanticSchemaGenerationError:
        raise SettingsError(f"{setting.key} is an object; set it in the pipeline file") from None
    readings = (adapter.validate_strings, adapter.validate_json)
    failures: list[ValidationError] = []
    for read in readings:
        try:
            return fitted(setting.key, setting.hint, read(text))
        except ValidationError as error:
            failures.append(error)
    shown = failures[-1] if text[:1] in ("[", "{") else failures[0]
    raise SettingsError(_explain(shown, setting.key)) from None


def _explain(error: "ValidationError", owner: str) -> str:
    """One-line message of the first error that pydantic found in a setting of `owner`."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in (owner, *first["loc"]))
    given = shortened(first["input"])
    if first["type"] == "value_error":  # an error of this library, with a complete message
        return f"{where}: {first['ctx']['error']}"
    said = first["msg"]
    said = said[said.index("should") :] if " should " in said else f"is wrong: {said}"
    return f"{where} {said}, got {given}"


def _domains(pipeline: Graph) -> dict[str, Domain]:
    evaluated = pipeline.evaluate.domains if pipeline.evaluate else ()
    return {domain.name: domain for domain in (*evaluated, *pipeline.task_domains)}


def _fields(value: Any, changes: Values) -> dict[str, Any]:
    """Fields of a settings object that change, with their new values."""
    changed: dict[str, Any] = {}
    for name in {path[0] for path in changes}:
        inner = {path[1:]: item for path, item in changes.items() if path[0] == name}
        changed[name] = inner[()] if () in inner else _replaced(getattr(value, name), inner)
    return changed


def _replaced(value: Any, changes: Values) -> Any:
    """A settings object with values at paths replaced, checked again by its own class."""
    if isinstance(value, Mapping):
        return _merged(value, changes)
    changed = _fields(value, changes)
    if not changed:
        return value
    if is_model(value):
        return type(value).model_validate({**fields_of(value), **changed})
    return dataclasses.replace(value, **changed)


def _merged(value: Mapping[str, Any], changes: Values) -> dict[str, Any]:
    """Settings by domain with some replaced."""
    merged = {domain: dict(own) for domain, own in value.items()}
    for (domain, *name), item in changes.items():
        if name:
            merged.setdefault(domain, {})[name[0]] = item
        else:
            merged[domain] = item
    return merged


def _rebuild(pipeline: G, policy: Policy, by_owner: Mapping[str, Values]) -> G:
    """Build every node again, upstream first, from its changed arguments."""
    given = _domains(pipeline).items()
    domains = {name: _replaced(domain, by_owner.get(name, {})) for name, domain in given}
    rebuilt: dict[int, Node] = {}
    for node in pipeline.nodes:
        changed = _fields(node, by_owner.get(node.name, {})) | _inputs(node, domains)
        for stands, replaced in _REPLACES.items():
            if stands in changed:
                changed.setdefault(replaced, None)
        if node.upstream:
            changed["up"], *others = (rebuilt[id(up)] for up in node.upstream)
            if others:
                changed["others"] = tuple(others)
        if hasattr(node, "policy"):
            changed["policy"] = policy
        rebuilt[id(node)] = node.rebuild(**changed)
    outputs = (rebuilt[id(output)] for output in pipeline.outputs)
    own = {name: getattr(pipeline, name) for name in ("seed", "trackers", "alarms", "prices")}
    own |= _fields(pipeline, by_owner.get("pipeline", {}))
    return type(pipeline)(pipeline.name, *outputs, **own)


def _read_trackers(text: str) -> tuple[Tracker, ...]:
    """Read trackers from a JSON list of their texts, or the text of one."""
    given = json.loads(text) if text.startswith("[") else [text] if text else []
    return named_trackers(given)


def _inputs(node: Node, domains: Mapping[str, Domain]) -> dict[str, Any]:
    """Sources and domains of a node, with the domains that changed."""
    if isinstance(node, Evaluate):
        return {"domains": tuple(domains[domain.name] for domain in node.domains)}
    if not isinstance(node, Tasks):
        return {}
    own = {source.name for source in node.sources if isinstance(source, Domain)}
    sources = (domains[s.name] if isinstance(s, Domain) else s for s in node.sources)
    others = (domains[d.name] for d in node.domains if d.name not in own)
    return {"sources": tuple(sources), "domains": tuple(others)}
