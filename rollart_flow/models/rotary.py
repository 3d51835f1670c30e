"""Rotary position embeddings, by the tables of their angles."""

from functools import lru_cache

import torch


def rotary_tables(head_dim: int, theta: float, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (cos, sin) of the rotary angles, float32 [length, head_dim / 2].

    Dimensions i and i + head_dim / 2 form the pair that the i-th angle rotates.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    inverse_frequencies = 1.0 / (theta**exponents)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * inverse_frequencies
    return angles.cos(), angles.sin()


@lru_cache(maxsize=8)
def full_tables(
    head_dim: int, theta: float, length: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (cos, sin) of both halves of the dimensions, [length, head_dim]. Do not change them.

    Batches of a run have few lengths, and small models compute a layer in the time of the tables.
    """
    with torch.inference_mode(False):  # tables of inference mode could not be trained with
        cos, sin = (torch.cat([half, half], -1) for half in rotary_tables(head_dim, theta, length))
        return cos.to(device, dtype), sin.to(device, dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply the rotary position embedding to [B, H, T, D], or packed [N, H, D]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
