"""Declarations of a `Worker`'s methods: how a `Cluster` calls them, and where they run.

These are the three decorators of ROLLART section 5.2 and Listing 1. They attach a declaration to a
function, which stays as it is, and `Cluster` reads it when it binds methods. Invariant: a
declaration that cannot work is refused where the class is defined, not where the method is called.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast, overload

from rollart_flow.errors import SettingsError
from rollart_flow.resources.declared import ForCollected, ForEach, ForOne
from rollart_flow.resources.dispatch import MODES, Call, Collect, Dispatch, Mode
from rollart_flow.serverless.transports import check_url

F = TypeVar("F", bound=Callable[..., Any])

_DECLARED = "__rollart_declaration__"
TAG = "domain"
"""Parameter by which `hw_mapping` routes; `tag_name`, the name in the paper, is accepted too."""
_TAGS = (TAG, "tag_name")
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Declaration:
    """The combined declaration of all decorators of one method."""

    mode: Mode | None = None
    """How workers run a call; None: one worker if the call is routed, otherwise all of them."""
    retries: int = 0
    """Number of times that Ray repeats a call whose worker was restarted; -1 is unlimited."""
    affinity: Mapping[str, str] | None = None
    """Resource class by domain, or None if calls are not routed by domain."""
    tag: str = TAG
    """Name of the parameter that holds the domain."""
    position: int = 0
    """Position of that parameter among the positional arguments of a call."""
    default: str | None = None
    """Default of that parameter."""
    url: str | None = None
    """Address of the endpoint that the method uses."""
    attribute: str | None = None
    """Attribute of the worker that holds the endpoint's proxy; None: the endpoint runs the method's
    calls."""

    @property
    def redirected(self) -> bool:
        """Whether an endpoint runs the method's calls, without any worker."""
        return self.url is not None and self.attribute is None

    @property
    def routed(self) -> bool:
        return self.mode is None and (self.affinity is not None or self.attribute is not None)


def declaration(function: Callable[..., Any]) -> Declaration:
    """Return the declaration of a method; the default one if it has no decorators."""
    declared: Declaration = getattr(function, _DECLARED, Declaration())
    return declared


def _declare(function: F, **fields: Any) -> F:
    setattr(function, _DECLARED, replace(declaration(function), **fields))
    return function


@overload
def register(mode: Literal["execute_all"] = "execute_all", *, retries: int = 0) -> ForEach: ...


@overload
def register(
    mode: Literal["first_result", "rank_zero", "split"], *, retries: int = 0
) -> ForOne: ...


@overload
def register(*, dispatch: Dispatch, collect: Collect | None = None) -> ForCollected: ...


def register(
    mode: str = "execute_all",
    *,
    dispatch: Dispatch | None = None,
    collect: Collect | None = None,
    retries: int = 0,
) -> Any:
    """Declare how a cluster calls a method on its workers, and how it combines their results.

    Args:
        mode: "execute_all" broadcasts the arguments and returns the list of results in worker
            order; "first_result" broadcasts them too and returns the first worker's result;
            "rank_zero" calls the first worker alone and returns its result; "split" cuts every
            argument along its first axis into one part for each data-parallel rank and returns
            the results joined in the same order (lists, tuples, Arrow tables, numpy arrays,
            torch tensors, and mappings of these).
        dispatch: replaces the mode: (ranks, args, kwargs) -> (args, kwargs) for each rank.
        collect: with `dispatch`: converts the results by rank to the result of the call; by
            default the call returns their list.
        retries: number of times that Ray repeats a call of an idempotent method whose worker was
            restarted; -1 is unlimited.

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

    def declare(function: F) -> F:
        declared = _declare(function, mode=chosen, retries=retries)
        if "ray" in sys.modules:
            tell_ray(declared)
        return declared

    return declare


def tell_ray(method: Callable[..., Any]) -> None:
    """Tell Ray how often to repeat a method's calls.

    Ray looks for that in the class, in every process that holds a handle of the actor: in a process
    of Ray when the class is imported, elsewhere when the class is first used with Ray.
    """
    if retries := declaration(method).retries:
        import ray

        ray.method(max_task_retries=retries)(method)


def hw_mapping(hw_affinity: Mapping[str, str]) -> ForOne:
    """Route each call by its domain to the workers of a resource class (ROLLART section 5.2).

    The worker of that class with the fewest calls in flight runs the call; together with
    `register`, all workers of the class do. The method must have a parameter `domain` or
    `tag_name`.

    Args:
        hw_affinity: resource class by domain; "default" is for all other domains.

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
            position=list(parameters).index(tag) - 1,
            default=None if default is inspect.Parameter.empty else default,
        )

    return cast(ForOne, declare)


def register_serverless(
    serverless_url: str | None = None, attribute: str | None = None, *, url: str | None = None
) -> ForOne:
    """Run a method's calls at a serverless endpoint (ROLLART section 5.2, R3).

    Without `attribute`, the method's body never runs: its one argument is a trajectory, it returns
    a score, and calling it on the cluster calls the endpoint. The cluster needs no worker for that.

    Args:
        serverless_url: serve://, http(s)://, fc://, lambda:// or local:// (see
            `rollart_flow.serverless`).
        attribute: as in Listing 1: one worker runs the method's body, which finds an
            `EndpointProxy` of the endpoint under this name.
        url: another name of `serverless_url`.

    Raises:
        SettingsError: there is no URL or no transport takes it, or the method does not take
            exactly one argument.
    """
    address = serverless_url or url
    if address is None or (serverless_url and url):
        raise SettingsError("register_serverless needs one address; pass serverless_url alone")
    check_url(address)

    def declare(function: F) -> F:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        required = [p for p in parameters if p.default is inspect.Parameter.empty]
        if attribute is None and (not parameters or len(required) > 1):
            raise SettingsError(
                f"{function.__qualname__} must take one trajectory to run at {address}; "
                "name an attribute to call the endpoint from a method with other arguments"
            )
        return _declare(function, url=address, attribute=attribute)

    return cast(ForOne, declare)


def declarations(worker_class: type) -> dict[str, Declaration]:
    """Return the declarations of all public methods of a class, by name."""
    return {
        name: declaration(method)
        for name in dir(worker_class)
        if not name.startswith("_") and callable(method := getattr(worker_class, name))
    }


def wanted_classes(declared: Mapping[str, Declaration]) -> dict[str, str]:
    """Return the resource class by domain that all methods of a class together ask for.

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
    """Return the domain that a call names, or "default" if it names none."""
    args, kwargs = call
    if declared.tag in kwargs:
        value = kwargs[declared.tag]
    else:
        value = args[declared.position] if declared.position < len(args) else declared.default
    return DEFAULT if value is None else str(value)
