"""The base of nodes: a class whose call checks settings and builds the node.

A setting is declared once, as an annotated field with a default and a docstring below it. A node
may hold several settings as one nested value, and each of them is a keyword of the node too:

    rollout(prompts, policy, temperature=0.7)
    rollout(prompts, policy, sampling=Sampling(temperature=0.7))

The short name is the key of the setting in overrides and in `run.json`. The invariant: every node
is valid by itself and fits the nodes upstream of it, so that its readers need no checks.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import isinf
from operator import attrgetter
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Concatenate,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
    overload,
)

from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.fields import fitted
from rollart_flow.pipeline.keywords import (
    Keyword,
    NodeDocumentation,
    NodeSignature,
    keywords,
    nested,
    nested_values,
    part,
    setting,
)

C = TypeVar("C")
_FEW = 12
"""Maximum number of valid settings that an error lists."""
P = ParamSpec("P")
First = TypeVar("First", contravariant=True)
Rest = TypeVar("Rest", contravariant=True)
Built = TypeVar("Built", covariant=True)


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    eq_default=False,
    field_specifiers=(setting, nested, part),
)
def node(cls: type[C]) -> type[C]:
    """Make a frozen node class of annotated fields; `Node.__init__` builds its instances."""
    made = dataclass(frozen=True, eq=False, init=False, kw_only=True)(cls)
    for name, kind in nested_values(made).items():
        for inner in fields(kind):
            setattr(made, inner.name, property(attrgetter(f"{name}.{inner.name}")))
    made.__doc__ = NodeDocumentation(cls.__doc__ or "")  # type: ignore[assignment]
    return made


class Node:
    """Base of all nodes: a name, unique in its pipeline, and the nodes upstream.

    Raises:
        PipelineError: an argument is missing, unknown or wrong; names the node and the argument.
    """

    kind: ClassVar[str]
    """The function that builds it."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Kinds of nodes that may stand upstream of it."""
    __signature__: ClassVar[Any] = NodeSignature()

    name: str
    given: Mapping[str, Any]
    """The arguments that the node was built from, by keyword."""

    def __init__(self, *args: Any, **arguments: Any) -> None:
        kind, name = type(self), arguments.get("name", self.kind)
        known = {*keywords(kind), *nested_values(kind)}
        if wrong := arguments.keys() - known:
            raise PipelineError(f"{name}: no setting {unknown_key(min(wrong), known)}")
        try:
            self._build(dict(inspect.signature(kind).bind(*args, **arguments).arguments))
        except (SettingsError, TypeError) as error:
            raise PipelineError(f"{name}: {error}") from error

    def rebuild(self, **changes: Any) -> Self:
        """Build the node again with some arguments replaced, and repeat all checks."""
        other = object.__new__(type(self))
        try:
            other._build({**self.given, **changes})
        except SettingsError as error:
            raise PipelineError(f"{self.name}: {error}") from error
        return other

    def _build(self, given: dict[str, Any]) -> None:
        """Hold the given arguments and the defaults of all others, and check the node."""
        kind = type(self)
        if kind.takes:
            self._expect(given["up"])
        for value, value_type in nested_values(kind).items():
            _flatten(given, value, value_type)
        for keyword in keywords(kind).values():
            if not keyword.within:
                self._hold(keyword.name, _held(keyword, given.get(keyword.name, keyword.default)))
        for value, value_type in nested_values(kind).items():
            own = {f.name: given[f.name] for f in fields(value_type) if f.name in given}
            self._hold(value, value_type(**own))
        self._hold("given", given)
        for name in keywords(kind):
            if isinstance(number := getattr(self, name), float) and isinf(number):
                raise SettingsError(f"{name} should be a finite number, got {number}")
        self._check()

    def _hold(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _expect(self, up: object) -> None:
        if not (isinstance(up, Node) and up.kind in self.takes):
            wanted = " or ".join(f"{kind}(...)" for kind in self.takes)
            got = f"{up.kind}(...)" if isinstance(up, Node) else type(up).__name__
            raise SettingsError(f"takes {wanted}, got {got}")

    def _check(self) -> None:
        """Complete the fields that follow from others, and refuse those that contradict.

        Raises:
            SettingsError: says what is wrong; the name of the node is put before it.
        """

    @property
    def upstream(self) -> tuple["Node", ...]:
        """Nodes that feed this one; the policy is a separate edge."""
        up = getattr(self, "up", None)
        return () if up is None else (up,)


def _flatten(given: dict[str, Any], value: str, kind: type) -> None:
    """Replace a nested value among the arguments by the settings in it."""
    whole = given.pop(value, None)
    if whole is None:
        return
    fitted(value, kind, whole)
    for inner in fields(kind):
        if inner.name in given:
            raise SettingsError(
                f"{inner.name} is given twice, by itself and within {value}; give one of them"
            )
    given.update({inner.name: getattr(whole, inner.name) for inner in fields(kind)})


def _held(keyword: Keyword, value: Any) -> Any:
    """The value of an argument in the form in which the node holds it."""
    if keyword.read is not None and isinstance(value, str | Path):
        return keyword.read(str(value))
    return fitted(keyword.name, keyword.hint, value)


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Message with a wrong key and the nearest valid keys, or all of them if they are few."""
    names = sorted(known)
    endings = [name.rpartition(".")[2] for name in names]
    if near := get_close_matches(key, [*names, *endings], n=1):
        meant = [name for name, end in zip(names, endings, strict=True) if near[0] in (name, end)]
        return f"{key!r} (did you mean {' or '.join(meant)}?)"
    if len(names) <= _FEW:
        return f"{key!r}; settings are {', '.join(names)}"
    owners = sorted({name.partition(".")[0] for name in names})
    return f"{key!r}; settings begin with {', '.join(owners)}, such as {names[0]}"


class Variadic(Protocol[First, Rest, P, Built]):
    """Type of a node class that takes several positional arguments, for type checkers.

    A dataclass transform knows no variadic parameter, so each number of arguments is spelled out; a
    call with more than six gives `*them`.
    """

    @overload
    def __call__(self, _1: First, /, *args: P.args, **kwargs: P.kwargs) -> Built: ...
    @overload
    def __call__(self, _1: First, _2: Rest, /, *args: P.args, **kwargs: P.kwargs) -> Built: ...
    @overload
    def __call__(
        self, _1: First, _2: Rest, _3: Rest, /,
        *args: P.args, **kwargs: P.kwargs,
    ) -> Built: ...  # fmt: skip
    @overload
    def __call__(
        self, _1: First, _2: Rest, _3: Rest, _4: Rest, /,
        *args: P.args, **kwargs: P.kwargs,
    ) -> Built: ...  # fmt: skip
    @overload
    def __call__(
        self, _1: First, _2: Rest, _3: Rest, _4: Rest, _5: Rest, /,
        *args: P.args, **kwargs: P.kwargs,
    ) -> Built: ...  # fmt: skip
    @overload
    def __call__(
        self, _1: First, _2: Rest, _3: Rest, _4: Rest, _5: Rest, _6: Rest, /,
        *args: P.args, **kwargs: P.kwargs,
    ) -> Built: ...  # fmt: skip


def variadic(
    kind: Callable[Concatenate[First, P], Built], rest: type[Rest]
) -> Variadic[First, Rest, P, Built]:
    """A node class that takes one positional argument and then any number of others."""
    return cast(Variadic[First, Rest, P, Built], kind)
