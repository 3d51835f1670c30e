"""Transfer of new weights from the engine to vLLM's processes in an unlinked file.

The invariant: once the file is written, its space is freed however this process ends.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from rollart_flow.errors import WeightsError
from rollart_flow.weights.local import save_tensors

if TYPE_CHECKING:
    import torch

_SHARED_MEMORY = Path("/dev/shm")


def written(tensors: Mapping[str, torch.Tensor]) -> int:
    """Write the tensors as safetensors, into shared memory if there is room.

    Returns:
        A file descriptor that the caller closes. Processes of the same user read the file as
        /proc/PID/fd/DESCRIPTOR.

    Raises:
        WeightsError: the file cannot be written.
    """
    size = sum(tensor.nbytes for tensor in tensors.values())
    shared = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 2 * size
    try:
        with TemporaryDirectory(
            prefix="rollart-", dir=_SHARED_MEMORY if shared else None
        ) as folder:
            file = Path(folder) / "model.safetensors"
            save_tensors(tensors, file)
            return os.open(file, os.O_RDONLY)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise WeightsError(f"weights could not be written for vLLM to read: {reason}") from error
