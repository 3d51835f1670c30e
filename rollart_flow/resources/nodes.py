"""Placement in a Ray cluster of processes that need no hardware class, and their address."""

import ray

LOOPBACK = "127.0.0.1"


def beside_driver() -> dict[str, str]:
    """Label selector of the node of this process, for what a run has one of: it dies with its
    driver anyway, so that no other node's end can end it."""
    return {"ray.io/node-id": ray.get_runtime_context().get_node_id()}


def reachable_host() -> str:
    """Address of this node as all others reach it: loopback where there are none."""
    alone = len([node for node in ray.nodes() if node["Alive"]]) == 1
    return LOOPBACK if alone else str(ray.util.get_node_ip_address())
