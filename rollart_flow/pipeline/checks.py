"""Checks and error messages shared by the functions that compose a pipeline."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from pydantic import ValidationError

from rollart_flow.envs.base import Domain
from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.pipeline import nodes
from rollart_flow.pipeline.messages import explain, unknown_key

P = ParamSpec("P")
N = TypeVar("N", bound=nodes.Node)


def checked_node(build: Callable[P, N]) -> Callable[P, N]:
    """Turn wrong keywords and values of a node's function into one-line errors.

    The node remembers what it was built from, so that an override can build it again.
    """
    shape = signature(build)
    keywords = {p.name for p in shape.parameters.values() if p.kind is not p.VAR_POSITIONAL}

    @wraps(build)
    def checked(*args: P.args, **kwargs: P.kwargs) -> N:
        name = kwargs.get("name", build.__name__)
        if wrong := kwargs.keys() - keywords:
            raise PipelineError(f"{name}: no setting {unknown_key(min(wrong), keywords)}")
        try:
            given = shape.bind(*args, **kwargs)
            node = build(*args, **kwargs)
        except ValidationError as error:
            raise PipelineError(f"{name}: {explain(error)}") from None
        except TypeError as error:
            raise PipelineError(f"{name}: {error}") from error
        except SettingsError as error:
            raise PipelineError(f"{name}: {error}") from None
        object.__setattr__(node, "recipe", nodes.Recipe(checked, given.arguments))
        return node

    return checked


def expect(node: str, up: object, *kinds: type[nodes.Node]) -> None:
    """Refuse an upstream of another kind."""
    if not isinstance(up, kinds):
        wanted = " or ".join(f"{kind.kind}(...)" for kind in kinds)
        got = f"{up.kind}(...)" if isinstance(up, nodes.Node) else type(up).__name__
        raise PipelineError(f"{node}: takes {wanted}, got {got}")


def known_domains(node: str, setting: str, given: Iterable[str], domains: Iterable[Domain]) -> None:
    """Refuse names that are not domains of the node."""
    names = [domain.name for domain in domains]
    for name in given:
        if name not in names:
            raise PipelineError(
                f"{node}: {setting} names an unknown domain {name!r}; "
                f"the domains are {', '.join(names)}"
            )


def unique_names(node: str, domains: Iterable[Domain]) -> None:
    """Refuse two domains of the same name, by which rows and settings identify a domain."""
    seen: set[str] = set()
    for domain in domains:
        if domain.name in seen:
            raise PipelineError(f"{node}: two domains are named {domain.name!r}; give one of them")
        seen.add(domain.name)


def check_prefill(node: nodes.Rollout) -> None:
    """Refuse settings of prefill workers that contradict others."""
    if node.prefill_affinity is not None and not node.prefill_workers:
        raise PipelineError(
            f"{node.name}: prefill_affinity={node.prefill_affinity} is for no worker; set "
            "prefill_workers too"
        )
    if node.prefill_workers and isinstance(node.hw_affinity, str):
        raise PipelineError(
            f"{node.name}: hw_affinity={node.hw_affinity} finds where prompts and tokens together "
            "are quickest, but prefill_workers computes them apart; name the classes"
        )


def stand_ins(
    node: str, affinity: Mapping[str, str | tuple[str, ...]] | str
) -> dict[str, tuple[str, ...]]:
    """The fallback classes that `hw_affinity` names, by resource class.

    Raises:
        PipelineError: a domain names no class, or two name different fallbacks for the same one.
    """
    declared: dict[str, tuple[str, ...]] = {}
    for domain, classes in ({} if isinstance(affinity, str) else affinity).items():
        if isinstance(classes, str):
            continue
        if not classes:
            raise PipelineError(f"{node}: hw_affinity[{domain!r}] names no class")
        if declared.setdefault(classes[0], classes[1:]) != classes[1:]:
            raise PipelineError(
                f"{node}: hw_affinity names different stand-ins for {classes[0]}; name the same "
                "ones for every domain"
            )
    return declared
