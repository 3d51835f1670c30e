"""Tokens that each trainer trains on a GPU, beside a plain loop of transformers and torch.

`python -m tests.benchmarks.gpu.training --peak-tflops 989`; models of random weights, 64 rows of
uneven lengths, GRPO, one update of AdamW over float32 weights, passes in bfloat16 (megatron:
float32, which is what it computes in here). The least of three rounds after one to warm up. A token
counts 6 operations for each parameter, attention none.
"""

import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pyarrow as pa
import torch

from rollart_flow.algorithms import grpo
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.backends.fsdp2 import Fsdp2Trainer
from rollart_flow.trainers.base import Trainer
from rollart_flow.trainers.batch.training_batch import TrainingBatch, read_batch
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.kernels import pinned
from tests.benchmarks.bench_trainer import ROWS, uneven_batch
from tests.benchmarks.gpu.shapes import Setting, main, random_weights
from tests.benchmarks.plain import PlainLoop
from tests.benchmarks.records import Record, record

ROUNDS = 4


def measure(setting: Setting) -> Iterator[Record]:
    """Rates by model and trainer."""
    table, lengths = uneven_batch(0, 4 if setting.tiny else ROWS)
    tokens, batch = int(lengths.sum()), read_batch(table)
    for name, config in setting.models.items():
        tensors = random_weights(config)
        per_token = 6 * sum(tensor.numel() for tensor in tensors.values())
        plain = PlainLoop(config, tensors, _settings(setting, "embedded"), setting.device)
        theirs = tokens / _plain_seconds(setting, plain, batch)
        del plain
        told = f"a plain loop {theirs:.0f} tokens/s"
        for backend in _backends():
            trainer = _trainer(setting, backend, config, tensors)
            rate = tokens / _trainer_seconds(setting, trainer, table)
            del trainer
            what = f"trainer: {name} trained by {backend}"
            yield record(what, rate, "tokens/s", peer=told)
            if setting.peak_tflops is not None:
                used = rate * per_token / (setting.peak_tflops * 1e12)
                yield record(f"{what}, MFU", used, "of peak", peer=told)


def _backends() -> tuple[str, ...]:
    return ("embedded", "fsdp2", "megatron") if find_spec("megatron") else ("embedded", "fsdp2")


def _settings(setting: Setting, backend: str) -> RankSettings:
    dtype = "float32" if backend == "megatron" else setting.dtype
    return RankSettings(backend=backend, device=setting.device.type, dtype=dtype)


def _trainer(
    setting: Setting, backend: str, config: ModelConfig, tensors: dict[str, torch.Tensor]
) -> Trainer:
    settings = _settings(setting, backend)
    if backend == "megatron":
        from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

        return MegatronTrainer(config, tensors, grpo(), settings)
    if backend == "fsdp2":
        return Fsdp2Trainer(config, tensors, grpo(), settings)
    return EmbeddedTrainer(config, tensors, grpo(), settings)


def _plain_seconds(setting: Setting, plain: PlainLoop, batch: TrainingBatch) -> float:
    with pinned(1):
        return _seconds(setting, lambda step: _timed(setting, lambda: plain.step(batch)))


def _trainer_seconds(setting: Setting, trainer: Trainer, table: pa.Table) -> float:
    """The metrics of a step, without the digest of the weights, which the plain loop lacks."""
    return _seconds(setting, lambda step: trainer.train_step(step, table).train_s)


def _seconds(setting: Setting, seconds_of: Callable[[int], float]) -> float:
    """The least of all steps but the first."""
    return min([seconds_of(step) for step in range(1, (2 if setting.tiny else ROUNDS) + 1)][1:])


def _timed(setting: Setting, call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    setting.wait()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main(measure, __doc__))
