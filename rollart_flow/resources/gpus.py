"""Shares of the GPUs that Ray counts by itself, for workers without a class of accelerators.

Invariant: the shares of all workers are reserved together or not at all, and CUDA shows a worker
only the GPU that its share belongs to.
"""

from collections.abc import Sequence
from dataclasses import replace

from rollart_flow.errors import RunFailedError
from rollart_flow.resources.classes import CPU, GPU
from rollart_flow.resources.placement import Placement, Request
from rollart_flow.resources.pools import GRACE_S, live_pools

_PARTS = 10_000
"""Number of parts in which Ray counts a GPU."""


def gpu_share(workers: int) -> float:
    """Return the share of a GPU for each of a number of workers, at most 1.

    Raises:
        RunFailedError: the connected cluster has no free GPU.
    """
    pool = live_pools().get(GPU)
    free = 0 if pool is None else int(pool.free)
    if not free:
        raise RunFailedError(
            "policy.device='cuda', but Ray counts no free GPU; set policy.device=cpu, or start Ray "
            "where there is one"
        )
    return _PARTS // -(-workers // free) / _PARTS


def on_gpus(placements: Sequence[Placement], share: float) -> list[Placement]:
    """Move workers from CPUs to a share of a GPU each; the others keep their placement.

    Raises:
        RunFailedError: the free GPUs have been taken meanwhile.
    """
    moved = [p for p in placements if p.granted == CPU]
    if not moved:
        return list(placements)
    import ray

    group = ray.util.placement_group([{GPU: share, CPU: p.cpus} for p in moved], strategy="PACK")
    if not group.wait(GRACE_S):
        ray.util.remove_placement_group(group)
        raise RunFailedError(
            f"policy.device='cuda': no room for {len(moved)} workers on {share:g} GPU each; other "
            "programs use this cluster, try again when they have ended"
        )
    bundles = {p.worker: index for index, p in enumerate(moved)}
    return [
        replace(
            p,
            worker=p.worker.replace(CPU.lower(), GPU.lower()),
            granted=GPU,
            requests=tuple(_on_gpu(request) for request in p.requests),
            gpus=share,
            group=group,
            bundle=bundles[p.worker],
            devices=share,
        )
        if p.worker in bundles
        else p
        for p in placements
    ]


def _on_gpu(request: Request) -> Request:
    """Record a request for no class as a request for GPU, which is granted."""
    return replace(request, resource=GPU) if request.resource == CPU else request
