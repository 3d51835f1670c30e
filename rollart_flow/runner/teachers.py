"""The run's own copy of the teacher of its algorithm, another policy.

With its own copy, a run can be resumed, replayed, and moved after the original folder is gone.
Invariant: the copy has the teacher's weights, to the last bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rollart_flow.errors import SettingsError
from rollart_flow.store.layout import teacher_uri
from rollart_flow.weights.atomic import remove_folder
from rollart_flow.weights.folder_store import file_in, made

if TYPE_CHECKING:
    from rollart_flow.algorithms.algorithm import Algorithm
    from rollart_flow.pipeline import Pipeline


def copy_teacher(pipeline: Pipeline, uri: str, parent: str | None = None) -> None:
    """Copy the teacher of a pipeline's algorithm, if it has one, into its run.

    Args:
        pipeline: the pipeline.
        uri: address of the run.
        parent: address of the run that it is forked from, whose copy is taken if the teacher is
            not on this machine.

    Raises:
        SettingsError: there is no such model.
        StoreError: the copy cannot be written.
    """
    from rollart_flow.models.folder import save_folder
    from rollart_flow.trainers.step.reference import load_teacher

    if (teacher := pipeline.train.algorithm.teacher) is None:
        return
    try:
        config, tensors = load_teacher(teacher)
    except SettingsError:
        if parent is None or not _has_copy(parent):
            raise
        config, tensors = load_teacher(teacher_uri(parent))
    with made(teacher_uri(uri)) as folder:
        if folder.exists():  # left by an interrupted setup
            remove_folder(folder)
        save_folder(folder, config, tensors, {})


def with_own_teacher(algorithm: Algorithm, uri: str) -> Algorithm:
    """Return an algorithm whose teacher is a run's copy, which older runs do not have."""
    if algorithm.teacher is None or not _has_copy(uri):
        return algorithm
    return replace(algorithm, teacher=teacher_uri(uri))


def _has_copy(uri: str) -> bool:
    return file_in(teacher_uri(uri), "config.json") is not None
