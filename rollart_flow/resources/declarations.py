"""What a method of a `Worker` declares of itself: how it is called on a `Cluster`, and where.

The three decorators of ROLLART section 5.2 and Listing 1. They leave the function as it is and
write beside it what `Cluster` reads when it binds methods; a worker's own calls are not affected.
The invariant: what cannot work is refused where the class is defined, not where it is called.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rollart_flow.errors import SettingsError
from rollart_flow.resources.dispatch import MODES, Call, Collect, Dispatch, Mode
from rollart_flow.serverless.transports import check_url

F = TypeVar("F", bound=Callable[..., Any])

_DECLARED = "__rollart_declaration__"
TAG = "domain"
"""Parameter that `hw_mapping` routes by. The paper calls it `tag_name`, which is taken too."""
_TAGS = (TAG, "tag_name")
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration that the decorators of one method add up to."""

    mode: Mode | None = None
    """How many workers run a call; None: all of them, or one where `affinity` chooses."""
    affinity: Mapping[str, str] | None = None
    """Resource class by domain."""
    tag: str = TAG
    """Parameter with the domain."""
    place: int = 0
    """Its place among the positional arguments of a call."""
    unnamed: str | None = None
    """Its default."""
    url: str | None = None
    """Endpoint that runs the method's calls."""
    attribute: str | None = None
    """Attribute of the worker that calls the endpoint; None: the method itself is redirected."""


def declaration(function: Callable[..., Any]) -> Declaration:
    """The declaration of a method; the default one if it has no decorators."""
    declared: Declaration = getattr(function, _DECLARED, Declaration())
    return declared


def _declare(function: F, **fields: Any) -> F:
    setattr(function, _DECLARED, replace(declaration(function), **fields))
    return function


def register(
    mode: str = "execute_all",
    *,
    dispatch: Dispatch | None = None,
    collect: Collect | None = None,
) -> Callable[[F], F]:
    """How a method is called on the workers of a cluster, and what becomes of their results.

    Args:
        mode: "execute_all" broadcasts the arguments and returns the list of results in worker
            order; "first_result" broadcasts them too and returns the first worker's result;
            "rank_zero" calls the first worker alone and returns its result; "split" cuts every
            argument along its first axis into one part for each data-parallel rank and returns
            the results joined in the same order (lists, tuples, Arrow tables, numpy arrays,
            torch tensors, and mappings of these).
        dispatch: in place of a mode: (ranks, args, kwargs) -> (args, kwargs) for each rank.
        collect: with `dispatch`: list of results by rank -> what the call returns; None: the list.

    Raises:
        SettingsError: there is no such mode, or `collect` comes without `dispatch`.
    """
    if dispatch is not None:
        chosen = Mode(dispatch, collect or list)
    elif collect is not None:
        raise SettingsError("collect needs a dispatch; pass both, or a mode")
    elif mode in MODES:
        chosen = MODES[mode]
    else:
        raise SettingsError(f"there is no mode {mode!r}; there are {', '.join(MODES)}")
    return lambda function: _declare(function, mode=chosen)


def hw_mapping(hw_affinity: Mapping[str, str]) -> Callable[[F], F]:
    """Route each call by its domain to the workers of a resource class (ROLLART section 5.2).

    One of these workers runs the call, the one with the fewest in flight; together with
    `register` all of them do. The method has a parameter `domain` (or `tag_name`).

    Args:
        hw_affinity: resource class by domain; "default" for the others.

    Raises:
        SettingsError: the mapping is empty, or the method has no such parameter.
    """
    if not hw_affinity:
        raise SettingsError('hw_affinity is empty; name a class, as in {"default": "H20"}')

    def declare(function: F) -> F:
        parameters = inspect.signature(function).parameters
        tag = next((name for name in _TAGS if name in parameters), None)
        if tag is None:
            raise SettingsError(
                f"{function.__qualname__} has no parameter {TAG!r} to route by; add one"
            )
        default = parameters[tag].default
        return _declare(
            function,
            affinity=dict(hw_affinity),
            tag=tag,
            place=list(parameters).index(tag) - 1,
            unnamed=None if default is inspect.Parameter.empty else default,
        )

    return declare


def register_serverless(url: str, attribute: str | None = None) -> Callable[[F], F]:
    """Run a method's calls at a serverless endpoint (ROLLART section 5.2, R3).

    The method keeps its signature: its one argument is a trajectory, it returns a score, and
    calling it on the cluster calls the endpoint. No worker is needed for that.

    Args:
        url: serve://, http(s)://, fc://, lambda:// or local:// (see `rollart_flow.serverless`).
        attribute: as in Listing 1: the method runs on a worker, which finds under this name
            an async function that calls the endpoint.

    Raises:
        SettingsError: no transport takes the URL, or the method does not take just one argument.
    """
    check_url(url)

    def declare(function: F) -> F:
        taken = list(inspect.signature(function).parameters.values())[1:]
        needed = [p for p in taken if p.default is inspect.Parameter.empty]
        if attribute is None and (not taken or len(needed) > 1):
            raise SettingsError(
                f"{function.__qualname__} must take one trajectory to run at {url}; "
                "name an attribute to call the endpoint from a method with other arguments"
            )
        return _declare(function, url=url, attribute=attribute)

    return declare


def declarations(worker_class: type) -> dict[str, Declaration]:
    """The declarations of all public methods of a class, by name."""
    return {
        name: declaration(method)
        for name in dir(worker_class)
        if not name.startswith("_") and callable(method := getattr(worker_class, name))
    }


def wanted_classes(declared: Mapping[str, Declaration]) -> dict[str, str]:
    """Resource class by domain, as all methods of a class together ask for it.

    Raises:
        SettingsError: two methods ask for different classes for one domain.
    """
    wanted: dict[str, str] = {}
    for name, each in declared.items():
        for domain, resource in (each.affinity or {}).items():
            if wanted.setdefault(domain, resource) != resource:
                raise SettingsError(
                    f"{name} maps {domain!r} to {resource}, but another method maps it to "
                    f"{wanted[domain]}; give both the same class"
                )
    return wanted


def domain_of(declared: Declaration, call: Call) -> str:
    """The domain that a call names; "default" where it names none."""
    args, kwargs = call
    if declared.tag in kwargs:
        value = kwargs[declared.tag]
    else:
        value = args[declared.place] if declared.place < len(args) else declared.unnamed
    return DEFAULT if value is None else str(value)
