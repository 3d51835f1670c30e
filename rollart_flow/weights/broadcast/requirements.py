"""Requirements of sending weights between GPUs, defined in this module only.

The invariant: a run that cannot send its weights is rejected before it starts, with a one-line
error.

Source: vLLM 0.32. Its IPC engine looks up a handle by the GPU's id, so it reaches only engines on
the trainer's device, and it gathers handles from all ranks of a trainer. Errors and messages are
tested without a GPU; the transfer itself was never run on one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rollart_flow.errors import SettingsError, WeightsError

SENT = ("nccl", "ipc")
"""Names of the transfer kinds."""
_CPU = "CPU"
_OTHERS = "take 'local' or 'mooncake'"


@dataclass(frozen=True, slots=True)
class Sending:
    """The sending trainer and receiving engines of a pipeline."""

    engine: str
    """Name of the inference engine."""
    engine_receives: bool
    """Whether the engine's GPU receives weights that a trainer's GPU sends."""
    classes: Collection[str]
    """Resource classes to which engines are bound; empty if they are determined at run time."""
    sliding_workers: int
    """Number of engines on the trainer's own devices."""
    ranks: int
    """Number of ranks of the trainer."""

    def check(self, kind: str) -> None:
        """Reject a pipeline whose weights cannot be sent.

        Raises:
            SettingsError: the weights cannot be sent; the message names the setting to change.
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
    """Reject trainers or engines placed on CPUs if the weight store sends, before their processes
    start.

    Args:
        kind: name of the weight store, in `SENT` or not.
        trainers: resource classes that the trainer's ranks were granted.
        engines: resource classes that the engines were granted.

    Raises:
        WeightsError: no trainer can send, or no engine can receive.
    """
    if kind not in SENT:
        return
    for who, granted in (("the trainer", trainers), ("every engine", engines)):
        if not set(granted) - {_CPU}:
            raise WeightsError(
                f"train.weights={kind!r} moves weights between GPUs, and this Ray cluster placed "
                f"{who} on CPU; {_OTHERS}"
            )
