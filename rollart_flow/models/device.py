"""Where the embedded engine and trainer compute: the one place that looks for a GPU.

The invariant: "cuda" is a GPU that this process sees, or it is refused before anything is computed.

Tried: on CPUs only. What follows from "cuda" is checked there with tensors that have a device and
no numbers (`tests/test_devices.py`); no line of it has run on a GPU.
"""

import os

import torch

from rollart_flow.errors import SettingsError
from rollart_flow.models.policy import DEVICES

CPU = torch.device("cpu")


def computing_device(name: str) -> torch.device:
    """The device that a policy names.

    Args:
        name: "cpu" or "cuda"; of several GPUs, the first that the process sees.

    Raises:
        SettingsError: it is neither, or it is cuda and this process sees no GPU.
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
    """The same, or the CPU where there is no GPU: for what is computed again on another machine,
    and says where it was."""
    return name if torch.cuda.is_available() else "cpu"


def use_gpu(device: torch.device) -> torch.device:
    """Make a GPU this process's own, with products that are summed in a fixed order."""
    # cuBLAS reads it when it starts; without it deterministic products are refused.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(device)
    return device
