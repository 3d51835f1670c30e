"""Check of a pipeline before a run: an environment of each domain can be made."""

import asyncio
from pathlib import Path

from rollart_flow.envs.base import Domain
from rollart_flow.envs.examples import check_examples
from rollart_flow.envs.process import ProcessEnvironment, WarmProcesses
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError
from rollart_flow.pipeline.graph import Graph

_MAKE_S = 60.0
"""Longest time for all environments, each in a process with its own imports [s]."""


def check_environments(pipeline: Graph, source: Path) -> None:
    """Make one environment of each domain, in processes that are killed at a time limit.

    Args:
        pipeline: pipeline with its overrides.
        source: its file, with the classes that cannot be imported by name.

    Raises:
        EnvironmentFailedError: an environment cannot be made; names its domain.
        EnvironmentTimeoutError: making them takes too long.
        SettingsError: the policy's format cannot be taught with a domain.
    """
    if pipeline.policy.warm_start:
        check_examples(pipeline.tasks.domains)
    evaluated = () if pipeline.evaluate is None else pipeline.evaluate.domains
    domains: list[Domain] = []
    for domain in (*pipeline.tasks.domains, *evaluated):
        if domain not in domains:
            domains.append(domain)
    asyncio.run(_make(domains, source))


async def _make(domains: list[Domain], source: Path) -> None:
    processes = WarmProcesses(keep=0)

    async def make(domain: Domain) -> None:
        environment = ProcessEnvironment(domain, _MAKE_S, source, processes)
        try:
            await environment.start()
        except EnvironmentFailedError as error:
            raise EnvironmentFailedError(f"domain {domain.name!r}: {error}") from error
        finally:
            await environment.close()

    made = [asyncio.ensure_future(make(domain)) for domain in domains]
    try:
        async with asyncio.timeout(_MAKE_S):
            await asyncio.gather(*made)
    except TimeoutError as error:
        late = (d.name for d, each in zip(domains, made, strict=True) if each.cancelled())
        raise EnvironmentTimeoutError(
            f"no environment of domain {' and '.join(map(repr, late))} was made within "
            f"{_MAKE_S:g} s; `--no-environments` plans without making one"
        ) from error
