"""Weights of a model that somebody else saved, as transformers reads them.

The invariant: no weight is made up. transformers fills in what a folder lacks; here that is an
error. What is returned has the names that transformers saves today, whatever the folder has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from rollart_flow.errors import WeightsError
from rollart_flow.models.hf.config import TransformersConfig
from rollart_flow.models.hf.model import TransformersModel, auto_class
from rollart_flow.text import one_line


def read_pretrained(folder: Path, config: TransformersConfig) -> dict[str, torch.Tensor]:
    """Return the weights of a folder, in the dtype that they are stored in.

    Raises:
        WeightsError: weights are missing, damaged or of another shape.
        SettingsError: see `StoredLayout`.
    """
    kind: Any = auto_class(config)
    with _quiet():
        try:
            model, report = kind.from_pretrained(
                folder, config=config.checked(), dtype="auto", local_files_only=True,
                use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
        except Exception as error:  # transformers and safetensors raise errors of any type
            raise WeightsError(
                f"weights in {str(folder)!r} cannot be read: {one_line(error)}"
            ) from error
    for name in sorted(report["missing_keys"]):
        raise WeightsError(f"weights in {str(folder)!r} lack {name!r}")
    for name, *_ in sorted(report["mismatched_keys"]):
        raise WeightsError(f"{name!r} in {str(folder)!r} is of another shape than config.json says")
    return TransformersModel(config, model).stored()


@contextmanager
def _quiet() -> Iterator[None]:
    """Show neither progress bars nor warnings about weights, which become errors here."""
    logging: Any = transformers_logging
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
