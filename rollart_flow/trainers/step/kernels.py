"""Pins what the bits of a step depend on beside its inputs: threads and kernels.

The invariant: within `pinned`, the same computation gives the same bits on the same machine,
whatever the process did to torch's settings before; outside, those settings are as they were.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic

from rollart_flow.trainers.ranks import Ranks

_FILL = "fill_uninitialized_memory"
_RAISE = 2
"""Deterministic kernels, and an error where there is none. Set this way, since
`use_deterministic_algorithms` does the same and imports the compiler: 3 seconds."""


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Run with this many intra-op threads, deterministic kernels and full float32 products."""
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


def describe_kernels(ranks: Ranks, dtype: str) -> str:
    """JSON of what else the bits depend on; the column `kernels` of `steps`.

    Args:
        ranks: the ranks of the trainer; another number of ranks sums in another order.
        dtype: that passes are computed in.
    """
    staged = {"pipeline_parallel": ranks.stages} if ranks.stages > 1 else {}
    return json.dumps(
        {
            "device": ranks.device.type,
            "ranks": ranks.count,
            "tensor_parallel": ranks.count // (ranks.replicas * ranks.stages),
            **staged,
            "dtype": dtype,
            "deterministic": True,
            "torch": torch.__version__,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            **_of_gpu(ranks.device),
        },
        sort_keys=True,
    )


def _of_gpu(device: torch.device) -> dict[str, str | None]:
    """Model of the GPU, and the version of CUDA."""
    if device.type != "cuda":
        return {}
    return {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
