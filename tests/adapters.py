"""A LoRA adapter in PEFT's format, made for the model of a folder."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from rollart_flow.models.folder import load_folder

RANK, ALPHA = 4, 8.0
MODULES = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")


def write_adapter(folder: Path, model: Path) -> dict[str, torch.Tensor]:
    """Write an adapter for the model of a folder; that model's weights with it merged in."""
    _, tensors = load_folder(model)
    generator = torch.Generator().manual_seed(3)
    parts: dict[str, torch.Tensor] = {}
    merged = dict(tensors)
    for name, tensor in tensors.items():
        if not any(f".{module}.weight" in name for module in MODULES):
            continue
        rows, columns = tensor.shape
        a = torch.randn(RANK, columns, generator=generator) * 0.3
        b = torch.randn(rows, RANK, generator=generator) * 0.3
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        parts |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
        merged[name] = tensor + ALPHA / RANK * (b @ a)
    folder.mkdir(parents=True)
    save_file(parts, folder / "adapter_model.safetensors")
    say(folder)
    return merged


def say(folder: Path, **changes: object) -> None:
    """Write the settings of an adapter."""
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": list(MODULES)}
    text = json.dumps({**said, "bias": "none", **changes})
    (folder / "adapter_config.json").write_text(text)
