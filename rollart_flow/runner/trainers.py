"""The ranks of a run's trainer: how they start, and become one process group."""

from collections.abc import Sequence

from rollart_flow.errors import RunFailedError
from rollart_flow.pipeline import Pipeline
from rollart_flow.resources import Placement, TypedCluster
from rollart_flow.runner.executors import Executor
from rollart_flow.runner.settings import rank_settings
from rollart_flow.runner.teachers import with_own_teacher
from rollart_flow.store.files import is_remote
from rollart_flow.store.layout import policy_uri, weights_uri
from rollart_flow.trainers.worker import TrainWorker, gather_ranks


def start_trainers(
    executor: Executor, pipeline: Pipeline, uri: str, weights: str, placed: Sequence[Placement]
) -> TypedCluster[TrainWorker]:
    """Start the ranks of the trainer without waiting for them; `gather_trainers` connects them."""
    return executor.cluster(
        placed,
        TrainWorker,
        {
            "run": uri,
            "settings": rank_settings(pipeline, uri),
            "algorithm": with_own_teacher(pipeline.train.algorithm, uri),
            "folder": policy_uri(uri),
            "weights": weights,
            "weights_uri": weights_uri(uri),
        },
        # A restarted rank would hold version 0: the session restarts all ranks instead.
        max_restarts=0,
    )


def in_turns(trainers: TypedCluster[TrainWorker]) -> bool:
    """Return whether engine workers hold the trainer's devices in turns with it."""
    return any(worker.placement.in_turns for worker in trainers.workers)


def gather_trainers(trainers: TypedCluster[TrainWorker], uri: str) -> None:
    """Make the trainers one process group.

    Raises:
        RunFailedError: they are on several nodes, but the run is in S3.
    """
    if not gather_ranks(trainers) and is_remote(uri):
        raise RunFailedError(
            "train: ranks on several nodes write a checkpoint into one folder, which a run in "
            "S3 has on one node only; give a store that all nodes see as a folder"
        )
