"""Arguments of nodes: how a field declares one, and what the call of a node accepts.

A setting is declared once, as an annotated field with a default and a docstring below it. From it
follow the keyword, its type and default in the signature, its text in `help`, and its check.
"""

import ast
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

Given = TypeVar("Given", contravariant=True)
Held = TypeVar("Held", covariant=True)


class Converted(Generic[Given, Held]):
    """Type of a field that is given in one form and held in another, for type checkers."""

    if TYPE_CHECKING:

        def __get__(self, node: object, kind: object) -> Held: ...

        def __set__(self, node: object, value: Given) -> None: ...


def setting(
    *, default: Any = MISSING, kw_only: bool = True, read: Callable[[str], Any] | None = None
) -> Any:
    """A setting without a default, or one that `read` converts if it is given as a text."""
    return field(default=default, kw_only=kw_only, metadata={"read": read})


def nested(*, default_factory: Callable[[], Any]) -> Any:
    """A nested value, by its class, each of whose settings is a keyword of the node too."""
    return field(default_factory=default_factory, metadata={"nested": True})


def part(
    *, default: Any = MISSING, kw_only: bool = True, init: bool = True, many: bool = False
) -> Any:
    """A field that holds a part of the graph or code, and so is no setting to override.

    A type checker takes it for a keyword with `init`; with `many` it is given all further
    positional arguments.
    """
    metadata = {"part": True, "many": many}
    return field(default=default, kw_only=kw_only, init=init, metadata=metadata)


@dataclass(frozen=True)
class Keyword:
    """One argument of the call that builds a node."""

    name: str
    within: str
    """Name of the nested value that holds the argument; empty: the node itself holds it."""
    hint: Any
    """Type that the argument must have."""
    default: Any
    """Value if it is not given; `MISSING` if it must be given."""
    positional: bool = False
    many: bool = False
    part: bool = False
    read: Callable[[str], Any] | None = None


class NodeSignature:
    """The signature of a node class, with the settings of its nested values."""

    def __get__(self, node: object, kind: type) -> inspect.Signature:
        if not is_dataclass(kind):  # a base of nodes, which nobody calls
            raise AttributeError("__signature__")
        return _signature(kind)


class NodeDocumentation:
    """The docstring of a node class, with the docstring of each setting."""

    def __init__(self, own: str) -> None:
        self._own = own

    def __get__(self, node: object, kind: type) -> str:
        docs = setting_docs(kind)
        listed = [f"    {name}: {docs.get(name, '')}" for name in keywords(kind)]
        return "\n".join([inspect.cleandoc(self._own), "", "Args:", *listed])


def nested_values(kind: Any) -> dict[str, Any]:
    """The nested values of a node class: field name and class."""
    declared: tuple[Field[Any], ...] = fields(kind)
    return {each.name: each.default_factory for each in declared if "nested" in each.metadata}


def keywords(kind: type) -> dict[str, Keyword]:
    """Every argument of a node class, by name; those within nested values come last."""
    return _keywords(kind)


@cache
def _keywords(kind: Any) -> dict[str, Keyword]:
    own, inner = _hints(kind), nested_values(kind)
    found = [_keyword(f, "", own[f.name]) for f in fields(kind) if f.name not in inner]
    for value, value_type in inner.items():
        hints = _hints(value_type)
        found += [_keyword(f, value, hints[f.name]) for f in fields(value_type)]
    return {keyword.name: keyword for keyword in found}


def _keyword(declared: Any, within: str, hint: Any) -> Keyword:
    default, many = declared.default, declared.metadata.get("many", False)
    if many:
        hint, default = Any, ()
    elif declared.default_factory is not MISSING:
        default = declared.default_factory()
    return Keyword(declared.name, within, hint, default, not declared.kw_only, **declared.metadata)


def _hints(kind: Any, *, include_extras: bool = True) -> dict[str, Any]:
    """Types in which the fields of a class are given."""
    hints = get_type_hints(kind, include_extras=include_extras)
    converted = (name for name, hint in hints.items() if get_origin(hint) is Converted)
    return hints | {name: get_args(hints[name])[0] for name in converted}


@cache
def _signature(kind: Any) -> inspect.Signature:
    plain = {name: _hints(each, include_extras=False) for name, each in nested_values(kind).items()}
    plain[""] = _hints(kind, include_extras=False)
    shape = inspect.Parameter
    found = []
    for keyword in keywords(kind).values():
        how: Any = shape.POSITIONAL_OR_KEYWORD if keyword.positional else shape.KEYWORD_ONLY
        how = shape.VAR_POSITIONAL if keyword.many else how
        default = shape.empty if keyword.many or keyword.default is MISSING else keyword.default
        hint = plain[keyword.within][keyword.name]
        found.append(shape(keyword.name, how, default=default, annotation=hint))
    for value, value_type in nested_values(kind).items():
        annotation = value_type | None
        found.append(shape(value, shape.KEYWORD_ONLY, default=None, annotation=annotation))
    found.sort(key=lambda parameter: parameter.kind)
    return inspect.Signature(found)


def setting_docs(kind: Any) -> dict[str, str]:
    """The docstring below each field of a class and of its nested values, by name."""
    docs: dict[str, str] = {}
    for value_type in nested_values(kind).values():
        docs |= setting_docs(value_type)
    for base in reversed(kind.__mro__[:-1]):
        (tree,) = ast.parse(dedent(inspect.getsource(base))).body
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for declared, below in pairwise(body):
            match declared, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docs[name] = " ".join(text.split())
    return docs
