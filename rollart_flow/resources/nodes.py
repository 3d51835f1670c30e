"""Where in a Ray cluster something runs that is not bound to any hardware class."""

import ray


def beside_driver() -> dict[str, str]:
    """Label selector of the node of this process, for what a run has one of: it dies with its
    driver anyway, so that no other node's end can end it."""
    return {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
