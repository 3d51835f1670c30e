"""LoRA adapters in PEFT's format: reading them, and merging them into weights.

Invariant: every adapter that is accepted has one meaning. PEFT features beyond plain low-rank
matrices next to linear layers are refused, so that an engine that serves the adapter and `merged`
compute the same function. An adapter is identified by its content, since folders are overwritten.

PEFT's adapter_config.json is interpreted as in `vllm.lora.peft_helper` of vLLM 0.32.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    import torch

CONFIG_FILE = "adapter_config.json"
TENSORS_FILE = "adapter_model.safetensors"
MOST_RANK = 512
"""Highest rank that vLLM supports."""
_BEYOND = (
    "use_dora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern", "use_qalora",
    "use_bdlora", "layer_replication", "alora_invocation_tokens", "fan_in_fan_out",
)  # fmt: skip
"""PEFT settings that change the computation; an accepted adapter has none of them enabled."""
_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter at the time it was read."""

    folder: str
    """Absolute path of the adapter's folder."""
    rank: int
    scale: float
    """Factor of the product of the adapter's matrices."""
    fingerprint: str
    """SHA-256 (hexadecimal) of the adapter's two files."""


def read_adapter(folder: str | Path) -> Adapter:
    """Read the adapter in a folder, without importing torch.

    Raises:
        SettingsError: there is no LoRA adapter, or it uses more than low-rank matrices.
    """
    place = Path(folder).expanduser().resolve()
    digest = hashlib.sha256()
    try:
        for name in (CONFIG_FILE, TENSORS_FILE):
            content = (place / name).read_bytes()
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
        rank, scale = _read_config(json.loads((place / CONFIG_FILE).read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        line = " ".join(str(error).split())
        raise SettingsError(
            "lora must be the folder of a plain LoRA adapter in PEFT's format, with safetensors, "
            f"of a rank up to {MOST_RANK}; {str(folder)!r} is not: {line}"
        ) from error
    return Adapter(str(place), rank, scale, digest.hexdigest())


def merged(tensors: Mapping[str, torch.Tensor], adapter: Adapter) -> dict[str, torch.Tensor]:
    """Return weights that compute the same function as `tensors` with the adapter applied.

    Args:
        tensors: weights in Hugging Face names, [out, in] where a layer is adapted.
        adapter: an adapter whose A is [rank, in] and whose B is [out, rank] for each layer.

    Raises:
        SettingsError: the adapter is for another model, or cannot be read.
    """
    return dict(Merged.of(tensors, adapter))


def is_adapter(names: Iterable[str]) -> bool:
    """Return whether tensors of these names are an adapter's, and not whole weights."""
    return any(name.endswith(_DOWN) for name in names)


def adapter_names(layer: str) -> tuple[str, str]:
    """Return PEFT's names of the two matrices, A [rank, in] and B [out, rank], of a layer."""
    return f"{_PREFIX}{layer}{_DOWN}", f"{_PREFIX}{layer}{_UP}"


def adapter_config(names: Iterable[str], rank: int, alpha: int) -> str:
    """Return adapter_config.json for the adapter whose tensors have these names."""
    targets = {name.removesuffix(_DOWN).removesuffix(_UP).rpartition(".")[2] for name in names}
    fields = {"r": rank, "lora_alpha": alpha, "target_modules": sorted(targets), "bias": "none"}
    return json.dumps({"peft_type": "LORA", "task_type": "CAUSAL_LM", **fields}, sort_keys=True)


class Merged(Mapping[str, "torch.Tensor"]):
    """Weights with an adapter applied, each computed when it is asked for."""

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        parts: Mapping[str, torch.Tensor],
        scale: float,
        *,
        said: str,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Check that every matrix of the adapter fits a weight.

        Args:
            tensors: weights in Hugging Face names, [out, in] where a layer is adapted.
            parts: the adapter's matrices in PEFT's names.
            scale: factor of the product of the matrices.
            said: description of the adapter, for errors.
            dtype: dtype of the weights that the adapter changes; by default that of each weight.

        Raises:
            SettingsError: the adapter is for another model.
        """
        self._tensors, self._scale, self._dtype = tensors, scale, dtype
        self._changes: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name in sorted({name.removesuffix(_DOWN).removesuffix(_UP) for name in parts}):
            down, up = parts.get(name + _DOWN), parts.get(name + _UP)
            changed = f"{name.removeprefix(_PREFIX)}.weight"
            weight = tensors.get(changed)
            wanted = None if down is None or up is None else (up.shape[0], down.shape[-1])
            if down is None or up is None or weight is None or tuple(weight.shape) != wanted:
                raise SettingsError(
                    f"{said} is for another model: the policy has no linear layer that fits its "
                    f"{name!r}"
                )
            self._changes[changed] = down, up

    @staticmethod
    def of(tensors: Mapping[str, torch.Tensor], adapter: Adapter) -> Merged:
        """Return weights with the adapter of a folder applied; see `merged`."""
        import safetensors
        from safetensors.torch import load_file

        try:
            parts = load_file(Path(adapter.folder) / TENSORS_FILE)
        except (OSError, safetensors.SafetensorError) as error:
            line = " ".join(str(error).split())
            raise SettingsError(f"lora: {adapter.folder!r} cannot be read: {line}") from error
        return Merged(tensors, parts, adapter.scale, said=f"lora: {adapter.folder!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> torch.Tensor:
        weight = self._tensors[name]
        if name not in self._changes:
            return weight
        down, up = self._changes[name]
        change = self._scale * (up.float() @ down.float())
        return (weight.float() + change).to(self._dtype or weight.dtype)


def _read_config(said: Mapping[str, Any]) -> tuple[int, float]:
    """Return (rank, scale) of an adapter's config.

    Raises:
        KeyError, TypeError, ValueError: the config is malformed or not supported.
    """
    if said["peft_type"] != "LORA":
        raise ValueError(f"peft_type is {said['peft_type']!r}")
    for name in _BEYOND:
        if said.get(name):
            raise ValueError(f"{name} is {said[name]!r}; convert it to a plain adapter")
    if said.get("bias", "none") != "none":
        raise ValueError(f"bias is {said['bias']!r}; train it with bias 'none'")
    rank, alpha = said["r"], said["lora_alpha"]
    if not isinstance(rank, int) or not 1 <= rank <= MOST_RANK:
        raise ValueError(f"its rank is {rank!r}")
    return rank, float(alpha) / (math.sqrt(rank) if said.get("use_rslora") else rank)
