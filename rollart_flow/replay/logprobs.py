"""Recomputed logprobs of a trajectory's tokens, each under its recorded policy version.

The results do not match to the last bit: the engine sampled the tokens one by one, with a KV cache
and in a batch with other requests, whereas this module runs one forward pass over the whole token
chain. The sums have the same terms in another order, so that float32 results differ in the last
digits only. `TOLERANCE` bounds the difference for each dtype.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from rollart_flow.errors import RollartError, WeightsError
from rollart_flow.models.folder import load_folder, read_config
from rollart_flow.models.lora import merged
from rollart_flow.pipeline import Pipeline
from rollart_flow.rows import trajectories_table
from rollart_flow.runner.adapters import stored_adapter
from rollart_flow.runner.retrain import bring_to, check_version, stored_trainer
from rollart_flow.store import Run
from rollart_flow.store.images import with_images
from rollart_flow.store.layout import policy_uri, weights_uri
from rollart_flow.trainers.batch.training_batch import read_scorable
from rollart_flow.trainers.step.kernels import pinned
from rollart_flow.trainers.step.scoring import recompute_logprobs
from rollart_flow.types import Split, Trajectory
from rollart_flow.weights import stored_weights
from rollart_flow.weights.folder_store import local_path
from rollart_flow.weights.whole import AdapterBase, adapter_of, merged_version

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.2}
"""Largest logprob difference that counts as rounding, by the engine's dtype [nats]."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A generated token with its recorded and its recomputed logprob."""

    position: int
    """Position in the trajectory's token chain."""
    version: int
    recorded: float
    recomputed: float

    @property
    def gap(self) -> float:
        """Absolute difference of the two logprobs [nats]; NaN if either is NaN."""
        return abs(self.recorded - self.recomputed)


def score_again(run: Run, pipeline: Pipeline, trajectory: Trajectory) -> list[ScoredToken]:
    """Score every generated token of a trajectory again, in order.

    The recorded temperature, allowed tokens, and kept tokens apply; a greedy trajectory was
    recorded with the logprobs of temperature 1. Tokens sampled with a LoRA adapter are scored with
    the run's own copy of that adapter.

    Raises:
        WeightsError: a version is neither stored any longer nor can it be recomputed; or the
            adapter in the run's folder is not the recorded one.
        TrainerError: the row cannot be scored, such as one with a token outside the vocabulary.
    """
    drawn = [at for at, generated in enumerate(trajectory.action_mask) if generated]
    if not drawn:
        return []
    adapter = None
    if trajectory.split is Split.EVALUATION and pipeline.evaluate is not None:
        adapter = stored_adapter(run, pipeline.evaluate.name)
    by_version = {}
    for version in sorted({trajectory.token_versions[at] for at in drawn}):
        tensors: Mapping[str, torch.Tensor] = _weights(run, pipeline, version)
        tensors = tensors if adapter is None else merged(tensors, adapter)
        by_version[version] = _logprobs(run, tensors, trajectory)
    return [
        ScoredToken(
            position=at,
            version=trajectory.token_versions[at],
            recorded=trajectory.logprobs[at],
            recomputed=by_version[trajectory.token_versions[at]][index],
        )
        for index, at in enumerate(drawn)
    ]


def score_under(run: Run, pipeline: Pipeline, trajectory: Trajectory, version: int) -> list[float]:
    """Return the logprobs of a trajectory's action tokens in order, all under one version [nats].

    Raises:
        WeightsError: the version is neither stored any longer nor can it be recomputed.
        TrainerError: the row cannot be scored, such as one with a token outside the vocabulary.
    """
    return _logprobs(run, _weights(run, pipeline, version), trajectory)


def _logprobs(run: Run, tensors: Mapping[str, torch.Tensor], trajectory: Trajectory) -> list[float]:
    model = read_config(local_path(policy_uri(run.uri))).build()
    model.load_stored({name: tensor.float() for name, tensor in tensors.items()})
    if trajectory.sampling.temperature == 0:
        plain = replace(trajectory.sampling, temperature=1.0, top_p=1.0, top_k=0)
        trajectory = replace(trajectory, sampling=plain)
    rows = with_images(run.uri, trajectories_table([trajectory]))
    with pinned(1):
        (logprobs,) = recompute_logprobs(
            model, read_scorable(rows, pictures=model.config.pictures())
        )
    return [float(value) for value in logprobs]


def _weights(run: Run, pipeline: Pipeline, version: int) -> Mapping[str, torch.Tensor]:
    """Return the weights of a version: the published ones, or retrained ones if not stored."""
    store = stored_weights(weights_uri(run.uri))
    try:
        tensors = store.read(version)
        adapter = adapter_of(store, version, tensors)
        if adapter is None:
            return tensors
        _, base = load_folder(local_path(policy_uri(run.uri)))
        return merged_version(tensors, adapter, AdapterBase(base, policy_uri(run.uri)))
    except WeightsError as missing:
        try:
            return _recomputed(run, pipeline, version)
        except RollartError as error:
            raise WeightsError(
                f"{missing.message}; and they cannot be recomputed: {error.message}"
            ) from error


def _recomputed(run: Run, pipeline: Pipeline, version: int) -> dict[str, torch.Tensor]:
    check_version(run, version)
    trainer = stored_trainer(run, pipeline)
    for again in bring_to(run, trainer, version):
        if not again.same_weights:
            raise WeightsError(f"step {again.step}: {again.difference}")
    return trainer.weights()
