"""The model architectures that this library implements, by their names in `config.json`.

All others are computed by transformers or served by vLLM. This module does not import torch.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DENSE = "Qwen3ForCausalLM"
MIXTURE = "Qwen3MoeForCausalLM"
"""The architecture whose layers can be mixtures of experts."""
AUTO, TRANSFORMERS = "auto", "transformers"
IMPLEMENTATIONS = (AUTO, TRANSFORMERS)
"""Implementations of a model in trainers: this library's own where there is one, or that of
transformers always."""
NO_MIXTURE = "the embedded engine computes no mixture of experts; take policy.engine=vllm"
"""Error message for an attempt to serve such a model with the embedded engine."""


def is_mixture(folder: str | Path | None) -> bool:
    """Return whether a pretrained model declares mixture-of-experts layers of Qwen3.

    A model that is missing or damaged counts as dense; loading it raises the error.
    """
    return _declared(folder).get("architectures") == [MIXTURE]


def foreign(folder: str | Path | None) -> str | None:
    """Return what of a pretrained model this library does not implement, or None if it does.

    A model that is missing or damaged counts as implemented; loading it raises the error.
    """
    values = _declared(folder)
    return not_implemented(values) if values else None


def not_implemented(values: Mapping[str, Any]) -> str | None:
    """Return the field of a `config.json` that this library does not implement, or None."""
    found = values.get("architectures")
    if found not in ([DENSE], [MIXTURE]):
        return f"architectures {found}"
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    for name, value, wanted in (
        ("hidden_act", values.get("hidden_act", "silu"), "silu"),
        ("attention_bias", values.get("attention_bias", False), False),
        ("use_sliding_window", values.get("use_sliding_window", False), False),
        ("rope_type", rope.get("rope_type", rope.get("type", "default")), "default"),
    ):
        if value != wanted:
            return f"{name} {value!r}"
    return None


def _declared(folder: str | Path | None) -> dict[str, Any]:
    if folder is None:
        return {}
    try:
        said = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Files of which a model that takes images has one: the settings of its image processor."""


def placeholder_of(folder: str | Path | None) -> int | None:
    """Return the token that stands for a part of an image in a pretrained model.

    None if the model takes no images; a model that is missing or damaged counts as such.
    """
    found = _declared(folder).get("image_token_id")
    return found if isinstance(found, int) else None


def architecture_of(folder: str | Path | None) -> str | None:
    """Return the architecture that a pretrained model declares; None if there is none."""
    found = _declared(folder).get("architectures")
    return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else None
