"""The architectures whose arithmetic is ours, by their names in `config.json`; loads no torch."""

import json
from pathlib import Path

DENSE = "Qwen3ForCausalLM"
MIXTURE = "Qwen3MoeForCausalLM"
"""The one whose layers are mixtures of experts."""
NO_MIXTURE = "the embedded engine computes no mixture of experts; take policy.engine=vllm"
"""What is said to who would serve one with it."""


def is_mixture(folder: str | Path | None) -> bool:
    """Whether a pretrained model says that its layers are mixtures of experts.

    One that is not here, or is damaged, does not; who loads it refuses it.
    """
    if folder is None:
        return False
    try:
        said = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and said.get("architectures") == [MIXTURE]
