"""Tensors of stored weights that are read one by one, for readers that need no whole model.

Invariant: a mapping holds no tensor; each is read when it is asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class TensorFile(Mapping[str, "torch.Tensor"]):
    """The tensors of a safetensors file; OSError or SafetensorError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        opened: Callable[..., Any] = safe_open  # whose methods have no types
        self._file = opened(path, framework="pt")
        self._names = tuple(sorted(self._file.keys()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor


class ShardedTensors(Mapping[str, "torch.Tensor"]):
    """The whole tensors of a folder of shards whose names have a prefix, without the prefix."""

    def __init__(self, folder: Path, prefix: str) -> None:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        self._folder, self._prefix = str(folder), prefix
        described = HuggingFaceStorageReader(self._folder).read_metadata().state_dict_metadata
        self._shapes = {
            name.removeprefix(prefix): (tuple(each.size), each.properties.dtype)
            for name, each in sorted(described.items())
            if name.startswith(prefix) and isinstance(each, TensorStorageMetadata)
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, name: str) -> torch.Tensor:
        import torch
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        shape, dtype = self._shapes[name]
        tensors = {f"{self._prefix}{name}": torch.empty(shape, dtype=dtype)}
        with warnings.catch_warnings():
            # torch warns of a process that plans alone.
            warnings.simplefilter("ignore")
            load(tensors, storage_reader=HuggingFaceStorageReader(self._folder), no_dist=True)
        return tensors[f"{self._prefix}{name}"]
