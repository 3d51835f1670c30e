"""Pinned threads and kernels, on which the bits of a step depend besides its inputs.

The invariant: within `pinned`, the same computation gives the same bits on the same machine,
whatever torch's settings were before; afterwards, those settings are restored.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic

from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.settings import RankSettings

_FILL = "fill_uninitialized_memory"
_RAISE = 2
"""Debug mode of deterministic kernels with an error where there is none. The function
`use_deterministic_algorithms` does the same, but imports the compiler, which takes 3 seconds."""


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Pin the number of intra-op threads, deterministic kernels and full float32 products."""
    before = (
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        bool(getattr(deterministic, _FILL)),
        torch.get_float32_matmul_precision(),
    )
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode(_RAISE)
    setattr(deterministic, _FILL, False)  # costs time, and nothing reads such memory
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_deterministic_debug_mode(before[1])
        setattr(deterministic, _FILL, before[2])
        torch.set_float32_matmul_precision(before[3])


def describe_kernels(ranks: Ranks, settings: RankSettings) -> str:
    """Return the column `kernels` of `steps`: JSON of all else that the bits depend on.

    Args:
        ranks: ranks of the trainer; another number of ranks sums in another order.
        settings: dtype that passes are computed in, and whether rows are packed.
    """
    staged = {"pipeline_parallel": ranks.stages} if ranks.stages > 1 else {}
    return json.dumps(
        {
            "device": ranks.device.type,
            "ranks": ranks.count,
            "tensor_parallel": ranks.count // (ranks.replicas * ranks.stages),
            **staged,
            "dtype": settings.dtype,
            **({"packed": True} if settings.packed else {}),  # steps of before have no such key
            "deterministic": True,
            "torch": torch.__version__,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            **_of_gpu(ranks.device),
        },
        sort_keys=True,
    )


def _of_gpu(device: torch.device) -> dict[str, str | None]:
    """Return the model of the GPU and the version of CUDA; empty on a CPU."""
    if device.type != "cuda":
        return {}
    return {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
