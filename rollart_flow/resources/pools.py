"""Which resource class a request is granted: the preferred one, or what there is instead.

A resource class is a name such as H800 or H20: a custom resource of a Ray node. "CPU" is there on
every node. A class that the cluster does not have falls back to CPU, and says so.
"""

from collections.abc import Mapping

import ray

from rollart_flow.errors import RunFailedError

CPU = "CPU"
_NO_CLASSES = frozenset({CPU, "GPU", "memory", "object_store_memory"})


def grant(requested: str) -> str:
    """The class that a request for `requested` is granted in the connected Ray cluster.

    Raises:
        RunFailedError: no Ray cluster is connected.
    """
    if not ray.is_initialized():
        raise RunFailedError("no Ray cluster is connected; start the run through `rollart run`")
    return requested if ray.cluster_resources().get(requested, 0.0) > 0 else CPU


def classes() -> tuple[str, ...]:
    """Every class of the connected Ray cluster in order; CPU only where there is no other.

    Raises:
        RunFailedError: no Ray cluster is connected.
    """
    if not ray.is_initialized():
        raise RunFailedError("no Ray cluster is connected; start the run through `rollart run`")
    names = ray.cluster_resources().keys() - _NO_CLASSES
    # Ray's own have a colon (nodes, accelerator types) or are parts of placement groups.
    own = sorted(name for name in names if ":" not in name and "_group_" not in name)
    return tuple(own) or (CPU,)


def grant_all(affinity: Mapping[str, str]) -> dict[str, str]:
    """Granted class for each domain of an affinity map; "default" is always among the keys."""
    return {domain: grant(requested) for domain, requested in {"default": CPU, **affinity}.items()}


def reservation(granted: str, cpus: float) -> dict[str, object]:
    """Ray actor options that reserve one unit of a class, or a share of CPU."""
    if granted == CPU:
        return {"num_cpus": cpus}
    return {"num_cpus": cpus, "resources": {granted: 1}}
