"""Nodes: placement of processes that need no hardware class, waits for what may lose its node, and
the name and address of this one."""

import asyncio
import os
import platform
import re
import sys
import warnings
from collections.abc import Awaitable, Collection
from typing import NoReturn, TypeVar

from rollart_flow.errors import EngineError, WorkerAwayError
from rollart_flow.resources.placement import Placement

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
NODE_S = 2.0
"""Time without an answer after which an actor's node is checked [s]."""

_NODE = "ray.io/node-id"
"""Ray's label of a node's id."""
_RAY_ID = re.compile("[0-9a-f]{56}")
ANYWHERE = [{"label_selector": {_NODE: "!in(none)"}}]
"""Ray's fallback strategy of processes whose nodes are gone: they may be on any other."""


def on_nodes(nodes: Collection[str]) -> dict[str, str] | None:
    """Return the label selector of some nodes, by their ids; None if there are none."""
    return {_NODE: f"in({', '.join(sorted(nodes))})"} if nodes else None


def beside_driver() -> dict[str, str]:
    """Return the label selector of this process's node, for the actors that a run has one of.

    A run ends with its driver anyway; on the driver's node, no other node's end can end it.
    """
    import ray

    return {_NODE: ray.get_runtime_context().get_node_id()}


def node_id() -> str:
    """Return Ray's id of this process's node, or the name of this machine without Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return platform.node()
    return str(ray.get_runtime_context().get_node_id())


def is_of_ray(node: str) -> bool:
    """Return whether a `node_id` is one of Ray, and not the name of a machine without Ray."""
    return _RAY_ID.fullmatch(node) is not None


def restarted() -> bool:
    """Return whether Ray started this actor's process in place of one that died."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return False
    with warnings.catch_warnings():  # Ray itself reads a property there that it deprecates
        warnings.filterwarnings("ignore", "(?s).*get_actor_id", DeprecationWarning)
        return bool(context.was_current_actor_reconstructed)


async def while_placed(placement: Placement, answer: Awaitable[T], every_s: float = NODE_S) -> T:
    """Wait for an actor's answer as long as it has a node: Ray silently queues calls until then.

    Args:
        placement: placement of the actor.
        answer: answer that is waited for; cancelled with the call.
        every_s: time without an answer after which the node is checked again.

    Raises:
        WorkerAwayError: no node has room for the actor.
    """
    asked = asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait((asked,), timeout=every_s))[0]:
            await check_placed(placement)
        return await asked
    finally:
        asked.cancel()


async def check_placed(placement: Placement) -> None:
    """Raise WorkerAwayError if no node has room for an actor."""
    if placement.group is not None:
        import ray

        table = await asyncio.to_thread(ray.util.placement_group_table, placement.group)
        if table["state"] != "CREATED":
            raise WorkerAwayError(f"no node has a free {placement.granted} now")


def end_actor() -> NoReturn:
    """End this process for good: Ray does not start another one in its place."""
    import ray

    ray.actor.exit_actor()
    raise AssertionError("exit_actor does not return")


def end_process(reason: str) -> None:
    """End an actor's process at once, so that Ray starts another.

    Raises:
        EngineError: the actor is an object of a process that others use, too.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        raise EngineError(reason)
    os._exit(1)


def reachable_host() -> str:
    """Return the address at which other nodes reach this one; loopback if it is the only one."""
    import ray

    alone = len([node for node in ray.nodes() if node["Alive"]]) == 1
    return LOOPBACK if alone else node_address()


def node_address() -> str:
    """Return the IP address of this process's node."""
    import ray

    return str(ray.util.get_node_ip_address())
