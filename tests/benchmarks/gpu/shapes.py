"""Shared parts of the benchmarks for GPUs: models with random weights, arguments, reports.

With `--tiny --device cpu` they run without a GPU.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from rollart_flow.errors import RollartError
from rollart_flow.models.device import computing_device
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from tests.benchmarks.records import Record

TINY = ModelConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=2048,
)


def qwen3(hidden: int) -> ModelConfig:
    """The shapes of Qwen3-0.6B (1024) and Qwen3-1.7B (2048), for 2,048 tokens."""
    return ModelConfig(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=2048,
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """The arguments of a benchmark."""

    device: torch.device
    tiny: bool
    peak_tflops: float | None
    """Peak of the device in bfloat16 [TFLOPS]; None: unknown."""

    @property
    def models(self) -> dict[str, ModelConfig]:
        """Shapes by name."""
        return {"tiny": TINY} if self.tiny else {"0.6B": qwen3(1024), "1.7B": qwen3(2048)}

    @property
    def dtype(self) -> str:
        """The dtype of the computation."""
        return "float32" if self.device.type == "cpu" else "bfloat16"

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def random_weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Random weights of version 0, float32, on the CPU."""
    model = Qwen3(config)
    model.initialize(0)
    return model.state_dict()


def main(measure: Callable[[Setting], Iterable[Record]], doc: str | None) -> int:
    """Run a benchmark by its arguments, one JSON record a line; the exit code."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model that computes in no time")
    parser.add_argument("--peak-tflops", type=float, help="of the GPU in bfloat16, for the MFU")
    told = parser.parse_args()
    if told.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # trainers of ranks take what they see
    try:
        setting = Setting(computing_device(told.device), told.tiny, told.peak_tflops)
        for found in measure(setting):
            print(json.dumps(found), flush=True)
    except RollartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
