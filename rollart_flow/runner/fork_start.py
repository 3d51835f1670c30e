"""The policy, the checkpoint and the version that a fork starts from.

A fork that trains the same LoRA adapter as its parent goes on with it: its policy folder has the
weights under the adapter, and the version is the adapter alone. Any other fork has the version's
whole weights as its policy, and a fresh adapter over them if it trains one. Invariant: whatever is
trained, the fork starts from exactly the weights that its parent had at the version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollart_flow.models.device import device_here
from rollart_flow.models.lora import is_adapter
from rollart_flow.runner.settings import rank_settings
from rollart_flow.runner.teachers import with_own_teacher
from rollart_flow.trainers.build import build_trainer

if TYPE_CHECKING:
    import torch

    from rollart_flow.algorithms.algorithm import Algorithm
    from rollart_flow.pipeline import Pipeline
    from rollart_flow.trainers.base import Trainer
    from rollart_flow.trainers.checkpoint.checkpoint import Checkpoint
    from rollart_flow.weights.base import AdapterEntry

_HEAD = "value_head"
"""Beginning of the names of a critic's tensors."""


@dataclass(frozen=True, slots=True)
class ForkStart:
    """A version of a parent, at which a trainer with the parent's settings stands."""

    trainer: Trainer
    parent: Pipeline
    """Pipeline of the parent."""
    pipeline: Pipeline
    """Pipeline of the fork."""
    uri: str
    """Address of the fork."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the fork."""
        return with_own_teacher(self.pipeline.train.algorithm, self.uri)

    @property
    def adapter(self) -> AdapterEntry | None:
        """The adapter with which the fork goes on; None if its version is whole weights."""
        same = self.parent.train.trainer.lora == self.pipeline.train.trainer.lora
        return self.trainer.adapter if same and self.trainer.version else None

    def policy(self, folder: str) -> Mapping[str, torch.Tensor]:
        """Return the weights of the fork's policy folder.

        Args: `folder` is the parent's policy folder.
        """
        from rollart_flow.models.folder import load_folder

        return self.trainer.weights() if self.adapter is None else load_folder(folder)[1]

    def checkpoint(self, folder: str) -> Checkpoint:
        """Return the checkpoint of the version for the fork's algorithm.

        The version becomes the reference policy of the fork, unless it has a teacher. If the
        algorithm needs a critic that the parent did not have, the critic starts with fresh weights.

        Args: `folder` is the fork's policy folder.
        """
        from rollart_flow.trainers.step.critic import fresh_head
        from rollart_flow.trainers.step.reference import REFERENCE, teacher_weights
        from rollart_flow.weights.fingerprint import fingerprint

        found, algorithm = self.trainer.snapshot(), self.algorithm
        state = {k: tensor for k, tensor in found.state.items() if not k.endswith(f"/{REFERENCE}")}
        found = replace(found, state=state)
        weights = self.trainer.weights()
        if self.adapter is None:
            found = self._adapted_anew(found, folder)
        taught = algorithm.teacher
        if taught is None and algorithm.needs_reference and is_adapter(found.weights):
            state = {f"{name}/{REFERENCE}": tensor for name, tensor in weights.items()}
            found = replace(found, state={**found.state, **state})
        if algorithm.critic is not None:
            head = fresh_head(found.model["hidden_size"])
            found = replace(found, state={**head, **found.state})
        reference = weights if taught is None else teacher_weights(taught)
        return replace(found, reference=fingerprint(reference))

    def _adapted_anew(self, found: Checkpoint, folder: str) -> Checkpoint:
        """Return a checkpoint without the parent's adapter, with the fork's own if it has one.

        Of the optimizer, what is kept is the part of the critic, since other tensors are trained.
        """
        from rollart_flow.trainers.checkpoint.checkpoint import RNG

        ours = self.pipeline.train.trainer.lora
        if ours is None and self.parent.train.trainer.lora is None:
            return found
        state = {k: t for k, t in found.state.items() if k == RNG or k.startswith(_HEAD)}
        if ours is None:
            weights = self.trainer.weights()
            return replace(found, weights=weights, state=state, base_checksum=None)
        settings = rank_settings(self.pipeline)
        base = None if settings.adapter_base is None else found.version
        settings = replace(settings, device=device_here(settings.device), adapter_base=base)
        fresh = build_trainer(settings, self.algorithm, folder).snapshot()
        found = replace(found, base_checksum=fresh.base_checksum, state={**fresh.state, **state})
        return replace(found, settings=fresh.settings, weights=fresh.weights)
