"""Models of the hardware: devices, language models, and the time that passes and steps take.

A roofline: prefill and training are bound by arithmetic, decode by memory bandwidth (weights and
KV cache of the batch), whichever takes longer. The invariant: a time is a function of the shapes
alone, and more work never takes less time. A comment beside each number says whether it is
measured or assumed.
"""

import math
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator (ROLLART Table 2)."""

    name: str
    tflops: float
    """Dense BF16 [TFLOPS]."""
    memory_gb: float
    bandwidth_tb_s: float
    """Bandwidth of the memory [TB/s]."""
    link_gb_s: float
    """NVLink, both directions together [GB/s]."""


H20 = Device("H20", tflops=148, memory_gb=96, bandwidth_tb_s=4.0, link_gb_s=900)
H800 = Device("H800", tflops=989.5, memory_gb=80, bandwidth_tb_s=3.35, link_gb_s=400)


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """The shapes of a language model that costs depend on (published configurations)."""

    name: str
    parameters: float
    layers: int
    hidden: int
    query_dim: int
    """Query heads times their size."""
    kv_dim: int
    """KV heads times their size."""
    active: float | None = None
    """Parameters that one token uses in a mixture of experts; None: all."""

    @property
    def per_token(self) -> float:
        return self.parameters if self.active is None else self.active

    @property
    def weight_bytes(self) -> float:
        """Size in BF16; 15.26, 27.51 and 61.02 GiB for the models of ROLLART Table 3."""
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> float:
        """KV cache of one token [bytes]."""
        return 2 * 2 * self.layers * self.kv_dim

    def weights_read(self, tokens: float) -> float:
        """Bytes of weights that one pass over `tokens` tokens reads.

        Each token of a mixture of experts is assumed to choose its experts independently.
        """
        if self.active is None:
            return self.weight_bytes
        unused = math.pow(1.0 - self.active / self.parameters, max(tokens, 1.0))
        return self.weight_bytes * (1.0 - unused)

    def forward_flops(self, tokens: float, context: float) -> float:
        """FLOPs of `tokens` tokens that see `context` tokens each, on average."""
        return tokens * (2 * self.per_token + 4 * self.layers * self.query_dim * context)


QWEN3_8B = SimulatedModel("Qwen3-8B", 8.19e9, 36, 4096, 4096, 1024)
QWEN3_14B = SimulatedModel("Qwen3-14B", 14.77e9, 40, 5120, 5120, 1024)
QWEN3_32B = SimulatedModel("Qwen3-32B", 32.76e9, 64, 5120, 8192, 1024)
QWEN3_30B_A3B = SimulatedModel("Qwen3-30B-A3B", 30.5e9, 48, 2048, 4096, 512, active=3.3e9)
QWEN25_7B = SimulatedModel("Qwen2.5-7B", 7.62e9, 28, 3584, 3584, 512)
MODELS = {m.name: m for m in (QWEN3_8B, QWEN3_14B, QWEN3_32B, QWEN3_30B_A3B, QWEN25_7B)}


class EngineModel(Protocol):
    """Times of one inference worker."""

    @property
    def hardware(self) -> str:
        """Hardware class."""

    @property
    def devices(self) -> int:
        """Accelerators of the worker."""

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache that the worker has room for."""

    @property
    def sequences(self) -> int:
        """Most sequences that share a pass."""

    def request_s(self, tokens: int) -> float:
        """Time of one request with this many new tokens, outside of the passes [s]."""

    def prefill_s(
        self, tokens: float, context: float, decoding: int = 0, kv_tokens: float = 0.0
    ) -> float:
        """Time of one pass over new tokens that see `context` tokens each, on average [s].

        In the same pass `decoding` sequences with `kv_tokens` in their KV caches sample a token.
        """

    def prompts_s(self, prompts: int) -> float:
        """Time that this many prompts add to their pass, beside that of their tokens [s]."""

    def decode_line(self, batch: int, kv_tokens: float) -> tuple[float, float]:
        """(a, b) such that one token for each of `batch` sequences takes a + b * KV [s]."""


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """Shares of a device's peaks that an engine attains, and the costs of its passes beside them.

    The defaults are assumed: dense kernels come to about 0.55 of the arithmetic in prefill and 0.75
    of the bandwidth in decode.
    """

    compute_share: float = 0.55
    bandwidth_share: float = 0.75
    """Share of the peak bandwidth at which weights are read."""
    kv_bandwidth_share: float = 0.75
    """Share of the peak bandwidth at which KV caches are read."""
    pass_s: float = 0.002
    """Launching one pass over the model [s]."""
    sequence_s: float = 0.0
    """Work of the engine for each sequence in a pass: scheduling, sampling, output [s]."""
    sequences: int = 256
    """Most sequences that share a pass (vLLM's `max_num_seqs`)."""
    memory_share: float = 0.9
    """Share of a device's memory that weights and KV caches may take (vLLM's
    `gpu_memory_utilization`, and its default)."""
    hop_s: float = 10e-6
    """Latency of one all-reduce of several devices [s]; two per layer."""


VLLM_ON_H100 = EngineCosts(0.67, 0.76, 0.93, pass_s=0.00144, sequence_s=14.5e-6)
"""Measured with vLLM 0.20.2, CUDA graphs and FlashAttention 3 on one H100 of 80 GB, whose
arithmetic and bandwidth are those of an H800, with the shapes of Qwen3-8B, 14B and 32B in BF16, up
to 256 sequences and 131,072 tokens in the KV caches. The model agrees with each of 30 measured
times of a token within 5%, and with 24 times of prefill within 15%
(tests/simulation/vllm_h100.jsonl)."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """One inference worker: a model on `degree` devices in tensor parallel."""

    model: SimulatedModel
    device: Device
    degree: int = 1
    costs: EngineCosts = EngineCosts()

    @property
    def hardware(self) -> str:
        return self.device.name

    @property
    def devices(self) -> int:
        return self.degree

    @property
    def sequences(self) -> int:
        return self.costs.sequences

    def request_s(self, tokens: int) -> float:
        """Zero: prompts are computed in passes [s]."""
        return 0.0

    @property
    def flops(self) -> float:
        """Arithmetic that kernels reach [FLOP/s]."""
        return self.degree * self.device.tflops * 1e12 * self.costs.compute_share

    def read_s(self, weights: float, kv_caches: float) -> float:
        """Time of reading weights and KV caches [bytes] from the devices' memory [s]."""
        peak = self.degree * self.device.bandwidth_tb_s * 1e12
        costs = self.costs
        return (weights / costs.bandwidth_share + kv_caches / costs.kv_bandwidth_share) / peak

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache that fit beside the weights; 0 or less if the weights do not fit."""
        room = self.degree * self.device.memory_gb * 1e9 * self.costs.memory_share
        return int((room - self.model.weight_bytes) / self.model.kv_bytes)

    def _pass_s(self, sequences: int) -> float:
        return self.costs.pass_s + sequences * self.costs.sequence_s

    def reduce_s(self, tokens: float) -> float:
        """Time of the all-reduces of one pass, in a ring with half of the link each way [s]."""
        if self.degree == 1:
            return 0.0
        sent = 2 * (self.degree - 1) / self.degree * tokens * self.model.hidden * 2
        return 2 * self.model.layers * (self.costs.hop_s + sent / (self.device.link_gb_s * 1e9 / 2))

    def prefill_s(
        self, tokens: float, context: float, decoding: int = 0, kv_tokens: float = 0.0
    ) -> float:
        model = self.model
        flops = model.forward_flops(tokens, context) + decoding * 2 * model.per_token
        flops += 4 * model.layers * model.query_dim * kv_tokens
        read_s = self.read_s(model.weights_read(tokens + decoding), model.kv_bytes * kv_tokens)
        seconds = max(flops / self.flops, read_s)
        return self._pass_s(decoding) + seconds + self.reduce_s(tokens + decoding)

    def prompts_s(self, prompts: int) -> float:
        return 0.0

    def decode_line(self, batch: int, kv_tokens: float) -> tuple[float, float]:
        """The line holds near `kv_tokens`, the tokens in the KV caches of the batch."""
        model = self.model
        memory = self.read_s(model.weights_read(batch), 0), self.read_s(0, model.kv_bytes)
        flops = batch * 2 * model.per_token, 4 * model.layers * model.query_dim
        compute = flops[0] / self.flops, flops[1] / self.flops
        a, b = max(memory, compute, key=lambda line: line[0] + line[1] * kv_tokens)
        return self._pass_s(batch) + self.reduce_s(batch) + a, b

    def decode_s(self, batch: int, kv_tokens: float) -> float:
        """Time of one token for each of `batch` sequences with `kv_tokens` in their caches [s]."""
        a, b = self.decode_line(batch, kv_tokens)
        return a + b * kv_tokens


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """A training step by its arithmetic: logprobs once, then forward and backward."""

    model: SimulatedModel
    device: Device
    compute_share: float = 0.35
    """Share of the peak; assumed, as dense models reach it with Megatron at this scale."""
    fixed_s: float = 5.0
    """The optimizer step and all other work that does not depend on tokens [s]; assumed."""

    def step_s(self, lengths: list[int], devices: int, epochs: int = 1) -> float:
        """Time of a step over trajectories of `lengths` tokens on `devices` devices [s]."""
        forward = sum(self.model.forward_flops(n, n / 2) for n in lengths)
        work = forward * (1 + 3 * epochs)
        return self.fixed_s + work / (devices * self.device.tflops * 1e12 * self.compute_share)
