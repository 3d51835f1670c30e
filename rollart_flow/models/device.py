"""Device selection for the embedded engine and trainer, and the only check for a GPU.

Invariant: "cuda" is a GPU that this process sees; otherwise it is refused before any computation.

Tests without a GPU check the behavior on "cuda" with tensors that have a device and no data
(`tests/test_devices.py`); where there is one, the tests of engine and trainer run on it too.
"""

import os

import torch

from rollart_flow.errors import SettingsError
from rollart_flow.models.policy import DEVICES

CPU = torch.device("cpu")


def computing_device(name: str) -> torch.device:
    """Return the device that a policy names.

    Args:
        name: "cpu" or "cuda"; with several GPUs, "cuda" is the first that the process sees.

    Raises:
        SettingsError: the name is unknown, or it is "cuda" and this process sees no GPU.
    """
    if name not in DEVICES:
        raise SettingsError(f"device must be one of {', '.join(DEVICES)}, not {name!r}")
    if name == "cpu":
        return CPU
    if not torch.cuda.is_available():
        raise SettingsError(
            f"policy.device='cuda': torch {torch.__version__} sees no GPU in this process; "
            "set policy.device=cpu, or start it on a machine with a GPU and a CUDA build of torch"
        )
    return use_gpu(torch.device(name, 0))


def device_here(name: str) -> str:
    """Return the named device, or "cpu" if this machine has no GPU.

    A recomputation on another machine uses this function and reports the device it ran on.
    """
    return name if torch.cuda.is_available() else "cpu"


def use_gpu(device: torch.device) -> torch.device:
    """Make a GPU the current device of this process, with deterministic matrix products."""
    # cuBLAS reads this variable when it starts; without it deterministic products are refused.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(device)
    return device
