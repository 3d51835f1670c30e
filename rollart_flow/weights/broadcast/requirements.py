"""What sending weights between GPUs takes: the one place that knows, for all who ask.

The invariant: where it cannot work, a run is refused before it starts, with one line.

Source: vLLM 0.32. Its IPC engine looks a handle up by the GPU's own id, so that it reaches engines
on the trainer's device only, and gathers handles from all ranks of a trainer. Tried without a GPU:
refusals and messages; the sending itself was never run on one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rollart_flow.errors import SettingsError, WeightsError

SENT = ("nccl", "ipc")
"""Names of the ways to send."""
_CPU = "CPU"
_OTHERS = "take 'local' or 'mooncake'"


@dataclass(frozen=True, slots=True)
class Sending:
    """A trainer that sends and engines that receive, as a pipeline has them."""

    engine: str
    """Name of the inference engine."""
    engine_receives: bool
    """Whether the engine's GPU receives weights that a trainer's GPU sends."""
    classes: Collection[str]
    """Resource classes that engines are bound to; empty: they are found."""
    sliding_workers: int
    """Engines on the trainer's own devices."""
    ranks: int
    """Of the trainer."""

    def check(self, kind: str) -> None:
        """Refuse what cannot be sent.

        Raises:
            SettingsError: says which setting to change.
        """
        said = f"train.weights={kind!r}"
        if not self.engine_receives:
            raise SettingsError(
                f"{said}: only vLLM receives weights on its GPU, not the {self.engine} engine; "
                f"take policy.engine=vllm, or {_OTHERS}"
            )
        if kind == "ipc" and not self.sliding_workers:
            raise SettingsError(
                f"{said}: it reaches engines on the trainer's own GPU only, and rollout has none; "
                f"set sliding_workers, or {_OTHERS}"
            )
        if kind == "ipc" and self.ranks > 1:
            raise SettingsError(
                f"{said}: one rank sends, on one GPU, but train.ranks={self.ranks}; take 1, or "
                "weights='nccl'"
            )
        if kind == "nccl" and self.classes and not set(self.classes) - {_CPU}:
            raise SettingsError(
                f"{said}: it moves weights between GPUs, and every engine is bound to CPU; name "
                f"another class in rollout.hw_affinity, or {_OTHERS}"
            )


def check_placed(kind: str, trainers: Collection[str], engines: Collection[str]) -> None:
    """Refuse, where a weight store sends, what was placed on CPUs, before a process of it starts.

    Args:
        kind: name of the weight store, of `SENT` or another.
        trainers: resource classes that the trainer's ranks were granted.
        engines: those of the engines.

    Raises:
        WeightsError: nobody can send, or nobody can receive.
    """
    if kind not in SENT:
        return
    for who, granted in (("the trainer", trainers), ("every engine", engines)):
        if not set(granted) - {_CPU}:
            raise WeightsError(
                f"train.weights={kind!r} moves weights between GPUs, and this Ray cluster placed "
                f"{who} on CPU; {_OTHERS}"
            )
