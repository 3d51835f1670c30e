"""The model architectures that this library implements, by their names in `config.json`.

This module does not import torch.
"""

import json
from pathlib import Path

DENSE = "Qwen3ForCausalLM"
MIXTURE = "Qwen3MoeForCausalLM"
"""The architecture whose layers can be mixtures of experts."""
NO_MIXTURE = "the embedded engine computes no mixture of experts; take policy.engine=vllm"
"""Error message for an attempt to serve such a model with the embedded engine."""


def is_mixture(folder: str | Path | None) -> bool:
    """Return whether a pretrained model declares mixture-of-experts layers.

    A model that is missing or damaged counts as dense; loading it raises the error.
    """
    if folder is None:
        return False
    try:
        said = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and said.get("architectures") == [MIXTURE]
