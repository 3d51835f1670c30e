"""Weights as the files of a Hugging Face folder: one safetensors file, or several and an index.

Invariant: at most one file's tensors are in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rollart_flow.weights.fingerprint import dtype_name

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 2 * 1024**3
"""Most bytes of one file of an exported folder, unless one tensor is larger."""
WEIGHTS_FILE = "model.safetensors"


def write_shards(
    tensors: Mapping[str, torch.Tensor], folder: Path, shard_bytes: int = SHARD_BYTES
) -> tuple[int, str]:
    """Write tensors as transformers does: one file, or several with an index.

    Returns:
        Size of all tensors [bytes], and the name of their dtype.
    """
    files: list[list[str]] = []
    shard: dict[str, torch.Tensor] = {}
    held = total = 0
    dtype = ""
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        size = tensor.numel() * tensor.element_size()
        if shard and held + size > shard_bytes:
            files.append(_write(shard, folder / f"{len(files)}.part"))
            shard, held = {}, 0
        shard[name] = tensor
        held += size
        total += size
        dtype = dtype or dtype_name(tensor)
    files.append(_write(shard, folder / f"{len(files)}.part"))
    _name_files(folder, files, total)
    return total, dtype


def _write(shard: Mapping[str, torch.Tensor], path: Path) -> list[str]:
    """Write one file and return the names of its tensors."""
    from safetensors.torch import save_file

    save_file(dict(shard), path, metadata={"format": "pt"})
    return [*shard]


def _name_files(folder: Path, files: list[list[str]], total: int) -> None:
    """Give the shards their names, which hold their number, and write the index."""
    if len(files) == 1:
        (folder / "0.part").rename(folder / WEIGHTS_FILE)
        return
    places = {}
    for number, names in enumerate(files):
        file = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        (folder / f"{number}.part").rename(folder / file)
        places.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / f"{WEIGHTS_FILE}.index.json").write_text(json.dumps(index, indent=2, sort_keys=True))
