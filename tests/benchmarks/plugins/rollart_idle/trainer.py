"""A trainer whose steps change nothing but the version."""

import pyarrow as pa

from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.base import StepResult


class IdleTrainer(EmbeddedTrainer):
    """Trains nothing."""

    def train_step(self, step: int, batch: pa.Table) -> StepResult:
        self._version = step
        return StepResult(
            step=step,
            loss=0.0,
            grad_norm=0.0,
            ratio_mean=1.0,
            ratio_max=1.0,
            clip_fraction=0.0,
            kl=0.0,
            entropy=0.0,
            learning_rate=0.0,
            tokens=0,
            action_tokens=0,
            train_s=0.0,
            fingerprint=f"{step:064x}",
            threads=1,
            kernels="{}",
        )
