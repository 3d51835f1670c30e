"""Checkpoints of a trainer as a folder without pickled code.

    model.safetensors       weights, Hugging Face names, or the matrices of an adapter, PEFT's names
    state.safetensors       the optimizer's tensors as `<parameter>/<tensor>`, and `rng`
    trainer.json            version, model, settings and checksums

The version is also the consumed position: batches 1 to version have been trained on. The invariant:
a folder under its own name is complete; a file that does not match its checksum is refused.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from rollart_flow.errors import TrainerError
from rollart_flow.trainers.settings import LoraSettings
from rollart_flow.weights.atomic import put_folder
from rollart_flow.weights.base import AdapterEntry
from rollart_flow.weights.buckets import save_tensors
from rollart_flow.weights.fingerprint import fingerprint
from rollart_flow.weights.tensor_files import TensorFile

_MODEL = "model.safetensors"
_STATE = "state.safetensors"
_META = "trainer.json"
SHARDED_META = "sharded.json"
"""Description of a checkpoint in shards, see `sharded_checkpoint`."""
FORMAT = 1
RNG = "rng"
"""Name of the random state among the tensors of a checkpoint's state."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that a trainer needs to continue as if it had never stopped."""

    version: int
    model: Mapping[str, Any]
    """Shape of the model; a checkpoint of another shape is refused."""
    settings: Mapping[str, Any]
    """Settings of the trainer, for the record; a trainer continues with its own settings."""
    learning_rate: float
    """Rate of the last step."""
    reference: str | None
    """Fingerprint of the reference policy; None where the algorithm needs none."""
    weights: Mapping[str, torch.Tensor]
    """Tensors as they are published: whole weights, or the matrices of an adapter."""
    state: Mapping[str, torch.Tensor]
    base_checksum: str | None = None
    """`fingerprint` of the frozen weights that an adapter was trained over; None where all weights
    are trained or published, and in checkpoints of earlier releases."""


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint durably and atomically; an older one in `folder` is replaced.

    Raises:
        TrainerError: the checkpoint cannot be written; an older one is unchanged.
    """
    meta = {
        "format": FORMAT,
        "version": checkpoint.version,
        "model": dict(checkpoint.model),
        "settings": dict(checkpoint.settings),
        "learning_rate": checkpoint.learning_rate,
        "reference": checkpoint.reference,
        "base_checksum": checkpoint.base_checksum,
        "weights": fingerprint(checkpoint.weights),
        "state": fingerprint(checkpoint.state),
    }

    def fill(place: Path) -> None:
        save_tensors(checkpoint.weights, place / _MODEL)
        save_tensors(checkpoint.state, place / _STATE)
        (place / _META).write_text(json.dumps(meta, indent=1, sort_keys=True))

    with as_trainer_error(f"checkpoint {folder} was not written"):
        put_folder(folder, fill)


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder holds a checkpoint of this kind, damaged or not."""
    return (folder / _META).is_file()


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises:
        TrainerError: there is no checkpoint, or it is damaged or of a newer format.
    """
    if not is_checkpoint(folder):
        raise TrainerError(f"no checkpoint in {folder}; expected a folder with {_META}")
    with as_trainer_error(f"checkpoint {folder} cannot be read"):
        meta = read_meta(folder / _META)
        found = Checkpoint(
            version=meta["version"],
            model=meta["model"],
            settings=meta["settings"],
            learning_rate=meta["learning_rate"],
            reference=meta["reference"],
            base_checksum=meta.get("base_checksum"),
            weights=safetensors.torch.load_file(folder / _MODEL, backend="pread"),
            state=safetensors.torch.load_file(folder / _STATE, backend="pread"),
        )
        checksums = (meta["weights"], meta["state"])
    if (fingerprint(found.weights), fingerprint(found.state)) != checksums:
        raise TrainerError(f"checkpoint {folder} is damaged: its tensors differ from its checksums")
    return found


def checkpoint_weights(folder: Path) -> Mapping[str, torch.Tensor]:
    """Return the verified weights of a checkpoint, each read when it is asked for.

    Raises:
        TrainerError: the checkpoint is damaged or of a newer format.
    """
    with as_trainer_error(f"checkpoint {folder} cannot be read"):
        checksum = read_meta(folder / _META)["weights"]
        weights = TensorFile(folder / _MODEL)
        if fingerprint(weights) != checksum:
            raise TrainerError(
                f"checkpoint {folder} is damaged: its weights differ from its checksum"
            )
    return weights


def checkpoint_adapter(folder: Path) -> AdapterEntry:
    """Return the adapter of a checkpoint, in shards or not, whose weights are its matrices.

    Raises:
        TrainerError: the checkpoint is damaged or of a newer format.
    """
    with as_trainer_error(f"checkpoint {folder} cannot be read"):
        meta = read_meta(folder / (_META if is_checkpoint(folder) else SHARDED_META))
        said = meta["settings"]
        lora = LoraSettings.of(said["lora_rank"], said["lora_alpha"])
        base, checksum = said["adapter_base"], meta.get("base_checksum")
        return AdapterEntry(base, lora.rank, lora.alpha, checksum)


def read_meta(path: Path) -> dict[str, Any]:
    """Read the description of a checkpoint.

    Raises:
        TrainerError: it has a newer format.
        OSError, ValueError, KeyError: it is damaged.
    """
    meta: dict[str, Any] = json.loads(path.read_text())
    if meta["format"] > FORMAT:
        raise TrainerError(
            f"checkpoint {path.parent} has format {meta['format']}, this version reads up to "
            f"{FORMAT}; upgrade rollart_flow"
        )
    return meta


@contextmanager
def as_trainer_error(what: str) -> Iterator[None]:
    """Convert errors of files and of their formats to a TrainerError of one line."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TrainerError(f"{what}: {reason}") from error
