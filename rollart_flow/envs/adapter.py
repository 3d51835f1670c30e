"""Selection of an environment's adapter: the event loop if it declares itself inline, else a
process.
"""

from pathlib import Path

from rollart_flow.control.protocols import AsyncEnvironment
from rollart_flow.envs.base import Domain
from rollart_flow.envs.inline import InlineEnvironment
from rollart_flow.envs.process import ProcessEnvironment, WarmProcesses


def open_environment(
    domain: Domain,
    *,
    timeout_s: float = 60.0,
    source: Path | None = None,
    processes: WarmProcesses | None = None,
) -> AsyncEnvironment:
    """Return an asynchronous environment of a domain; nothing starts before its reset.

    Args:
        domain: its `environment` class says whether it is inline.
        timeout_s: time limit of each reset and step of one that is not inline.
        source: pipeline file with the domain's class, where it cannot be imported by name.
        processes: idle processes to reuse for one that is not inline.
    """
    if domain.environment.inline:
        return InlineEnvironment(domain)
    return ProcessEnvironment(domain, timeout_s, source, processes)
