"""Versions of a model that are LoRA adapters, and the folders of the weights they stand for."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from rollart_flow.models.folder import load_folder, save_folder
from rollart_flow.models.tokenizer import tokenizer_files
from rollart_flow.weights import LocalWeightStore
from rollart_flow.weights.base import AdapterEntry
from tests.adapters import ALPHA, RANK, write_adapter

ENTRY = AdapterEntry(base=0, rank=RANK, alpha=int(ALPHA))


def publish_adapters(place: Path, base: Path) -> tuple[LocalWeightStore, list[Path]]:
    """Publish versions 1 and 2 as adapters over a folder; the store, and a folder for each version
    from 0 with the weights that it stands for."""
    store, folders = LocalWeightStore(place / "weights"), [base]
    for version, sign in ((1, 1.0), (2, -1.0)):
        write_adapter(place / f"adapter-{version}", base)
        parts = load_file(place / f"adapter-{version}" / "adapter_model.safetensors")
        parts = {name: sign * part if "lora_B" in name else part for name, part in parts.items()}
        store.publish(version, parts, adapter=ENTRY)
        config, tensors = load_folder(base)
        target = place / f"merged-{version}"
        save_folder(target, config, merged_by_hand(tensors, parts), tokenizer_files(base))
        folders.append(target)
    return store, folders


def merged_by_hand(
    tensors: Mapping[str, torch.Tensor], parts: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Weights with an adapter merged."""
    found = dict(tensors)
    for name, down in parts.items():
        if name.endswith(".lora_A.weight"):
            up = parts[name.replace("lora_A", "lora_B")]
            layer = name.removeprefix("base_model.model.").replace(".lora_A", "")
            found[layer] = tensors[layer] + ENTRY.scale * (up @ down)
    return found
