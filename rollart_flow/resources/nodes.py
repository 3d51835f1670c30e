"""Placement of processes that need no hardware class, and their address."""

import ray

LOOPBACK = "127.0.0.1"


def beside_driver() -> dict[str, str]:
    """Return the label selector of this process's node, for the actors that a run has one of.

    A run ends with its driver anyway; on the driver's node, no other node's end can end it.
    """
    return {"ray.io/node-id": ray.get_runtime_context().get_node_id()}


def reachable_host() -> str:
    """Return the address at which other nodes reach this one; loopback if it is the only one."""
    alone = len([node for node in ray.nodes() if node["Alive"]]) == 1
    return LOOPBACK if alone else str(ray.util.get_node_ip_address())
