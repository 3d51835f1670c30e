"""Memory of vLLM on CPUs, which reserves the KV cache of the longest chains when it starts.

vLLM says in the log of its own process alone that the cache does not fit; here it is one line.
"""

from __future__ import annotations

import re
from pathlib import Path

from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.errors import SettingsError
from rollart_flow.models.language_model import ModelShape

CACHED_CHAINS = 64
"""Most finished chains whose prefix is kept for reuse on CPUs, in addition to the decoding
chains; a machine without the memory keeps fewer."""
BLOCK_TOKENS = 128
"""Number of tokens of one KV cache block on CPUs; a chain fills its last block in part."""
_MEMINFO = Path("/proc/meminfo")
_GIB = 1 << 30


def token_bytes(config: ModelShape, settings: VllmSettings) -> int:
    """Return the size of the keys and values of one token, over all layers."""
    width = 4 if settings.dtype == "float32" else 2
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * width


def cache_bytes(
    config: ModelShape, settings: VllmSettings, context: int, *, available: int, weights: int
) -> int:
    """Return the size of the cache for `max_batch` longest chains, and the finished ones that fit.

    Args:
        config: shape of the model.
        settings: settings of the engine.
        context: longest chain [tokens].
        available: memory that processes can still take [bytes].
        weights: memory that the model takes of it [bytes].

    Raises:
        SettingsError: weights and the cache of `max_batch` chains take more than is available; the
            message has the longest context that fits.
    """
    block = BLOCK_TOKENS * token_bytes(config, settings)
    chain, decoding = -(-context // BLOCK_TOKENS), settings.max_batch
    blocks = max(0, (available - weights) // block - 1)
    if (finished := blocks // chain - decoding) >= 0:
        return ((decoding + min(finished, CACHED_CHAINS)) * chain + 1) * block
    needed = (decoding * chain + 1) * block
    fits = blocks // decoding * BLOCK_TOKENS
    hint = f"policy.max_context={fits} fits" if fits else "take a lower policy.max_batch as well"
    raise SettingsError(
        f"policy: vLLM on CPUs reserves {needed / _GIB:.1f} GiB for the keys and values of "
        f"max_batch ({decoding}) chains of max_context ({context}) tokens, and this machine has "
        f"{available / _GIB:.1f} GiB for them and {weights / _GIB:.1f} GiB of weights; lower "
        f"policy.max_context or policy.max_batch: {hint}"
    )


def available_bytes(meminfo: Path = _MEMINFO) -> int:
    """Return the memory that processes of this machine can still take.

    Raises:
        OSError, ValueError: the kernel does not say it.
    """
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{meminfo} has no MemAvailable")
    return int(found[1]) * 1024


def weights_bytes(folder: Path) -> int:
    """Return the size of a model's weights in their files."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
