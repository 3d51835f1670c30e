"""Check of a pipeline before a run: an environment of each domain can be made, or reached, and
reset with the first task; the policy's model is known, and its chat template can be read."""

import asyncio
from pathlib import Path

from rollart_flow.control.environment import AsyncEnvironment, starts_slowly
from rollart_flow.envs.base import Domain, opens_boxes
from rollart_flow.envs.examples import check_examples
from rollart_flow.envs.loop import LoopEnvironment
from rollart_flow.envs.process import ProcessEnvironment, WarmProcesses
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError
from rollart_flow.harness.checks import check_agent
from rollart_flow.harness.environment import AgentDomain
from rollart_flow.isolation.child import error_line
from rollart_flow.isolation.thread import CallThread
from rollart_flow.models.version_zero import check_pretrained, policy_codec
from rollart_flow.pipeline.generating import GeneratingNode
from rollart_flow.pipeline.graph import Graph
from rollart_flow.timeouts import timeout
from rollart_flow.types import Split, Task

_MAKE_S = 60.0
"""Longest time for all environments, each in a process with its own imports [s]."""


def check_environments(pipeline: Graph, source: Path) -> None:
    """Make one environment of each domain, in processes that are killed at a time limit.

    One that lives at a server is connected to. Others are reset with the first task, unless they
    open boxes.

    Args:
        pipeline: pipeline with its overrides.
        source: its file, with the classes that cannot be imported by name.

    Raises:
        EnvironmentFailedError: an environment cannot be made or reset; names its domain.
        EnvironmentTimeoutError: making them takes too long.
        SettingsError: the policy's format cannot be taught with a domain, the program of an agent
            is not installed here, it needs tools that the policy does not have, or the policy's
            folder has no model that is known, or no tokenizer or chat template that can be used.
    """
    if pipeline.policy.warm_start:
        check_examples(pipeline.taught_domains)
    domains = [_worked_at(pipeline.rollout, domain) for domain in pipeline.task_domains]
    if pipeline.evaluate is not None:
        evaluated = pipeline.evaluate.domains
        domains += [_worked_at(pipeline.evaluate, domain) for domain in evaluated]
    agents = [domain.harness for domain in domains if isinstance(domain, AgentDomain)]
    # The template of a policy made from scratch has a place for tools.
    known = pipeline.policy.path is not None
    codec = policy_codec(pipeline.policy) if known else None
    if known:
        check_pretrained(pipeline.policy)
    for agent in agents:
        check_agent(agent, codec)
    asyncio.run(_make([d for n, d in enumerate(domains) if d not in domains[:n]], source))


def _worked_at(node: GeneratingNode, domain: Domain) -> Domain:
    """Return a domain, with the program that works at its tasks if there is one."""
    agent = node.agent_in(domain.name)
    return domain if agent is None else AgentDomain(domain, agent)


async def _make(domains: list[Domain], source: Path) -> None:
    processes = WarmProcesses(keep=0)

    async def make(domain: Domain) -> None:
        remote = domain.make_async()
        environment: AsyncEnvironment = (
            ProcessEnvironment(domain, _MAKE_S, source, processes)
            if remote is None
            else LoopEnvironment(remote, domain, _MAKE_S)
        )
        try:
            if starts_slowly(environment):
                await environment.start()
            if not (remote or isinstance(domain, AgentDomain) or opens_boxes(domain)):
                await environment.reset(0, (await _first_task(domain)).payload)
        except EnvironmentFailedError as error:
            raise EnvironmentFailedError(f"domain {domain.name!r}: {error}") from error
        finally:
            await environment.close()

    made = [asyncio.ensure_future(make(domain)) for domain in domains]
    try:
        async with timeout(_MAKE_S):
            await asyncio.gather(*made)
    except TimeoutError as error:
        late = (d.name for d, each in zip(domains, made, strict=True) if each.cancelled())
        raise EnvironmentTimeoutError(
            f"no environment of domain {' and '.join(map(repr, late))} was made within "
            f"{_MAKE_S:g} s; `--no-environments` plans without making one"
        ) from error


async def _first_task(domain: Domain) -> Task:
    """Return the first training task of a domain.

    Raises:
        EnvironmentFailedError: the domain raises, or gives none.
    """
    thread = CallThread("tasks")
    try:
        task = await thread.call(lambda: next(iter(domain.tasks(Split.TRAIN, 0)), None))
    except Exception as error:  # the user's code ends here
        raise EnvironmentFailedError(f"tasks: {error_line(error)}") from error
    finally:
        thread.end()
    if task is None:
        raise EnvironmentFailedError("tasks: it gives no training tasks")
    return task
