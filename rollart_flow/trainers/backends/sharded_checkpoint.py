"""State that is sharded over ranks as DTensors, and its checkpoints as a folder without pickle.

    shard-*.safetensors     tensors of each rank: `weights/<name>` and `state/<name>/<tensor>`
    sharded.json            version, model, settings, names of tensors and checksums of files

Every exported tensor is whole or describes which part it is, so that any number of ranks can read
it; torch.distributed.checkpoint writes and reads the shards.
The invariant: a folder under its own name is complete; a file that does not match its checksum is
refused.

Megatron's trainers write these files too, instead of those of Megatron's `dist_checkpointing`,
which contain pickles, have Megatron's own names and layouts, and need its process-wide state. The
state of the distributed optimizer is that of its "fully_reshardable" format, bit by bit.

Source: Megatron-core 0.16.1, `dist_checkpointing` and `DistributedOptimizer.sharded_state_dict`.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor, distribute_tensor

from rollart_flow.errors import TrainerError
from rollart_flow.trainers.checkpoint.checkpoint import (
    FORMAT,
    RNG,
    SHARDED_META,
    Checkpoint,
    as_trainer_error,
    read_meta,
)
from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.step.reference import REFERENCE
from rollart_flow.trainers.step.train_state import InitialState, TrainState
from rollart_flow.weights.atomic import put_folder
from rollart_flow.weights.tensor_files import ShardedTensors


class ShardedState(TrainState):
    """Model, head and optimizer of all ranks, of which this process holds a part."""

    def __init__(self, initial: InitialState, ranks: Ranks) -> None:
        """Shard the initial weights; WeightsError if they do not fit the shape."""
        self._ranks = ranks
        self.shapes = {name: tensor.shape for name, tensor in initial.tensors.items()}
        """Shapes of all whole tensors of the policy, including those held by other ranks only."""
        super().__init__(initial, ranks.device)

    def whole(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gather tensors on the CPU; every rank must call this for the same tensors."""
        return {
            name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()
            for name, tensor in tensors.items()
        }

    def _laid_out(self, tensor: torch.Tensor, like: DTensor) -> DTensor:
        """Lay out a checkpoint tensor, whole or a part, as another tensor."""
        if isinstance(tensor, DTensor):
            return tensor
        whole = tensor.to(self._ranks.device)
        # Every rank has read the whole tensor and takes its part without an exchange.
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


_WEIGHTS, _STATE = "weights/", "state/"


def begin_writing(folder: Path, checkpoint: Checkpoint, ranks: Ranks) -> Callable[[], None]:
    """Copy the tensors and begin to write them in a thread; every rank calls this together.

    Returns a function that waits until the checkpoint is durable under its name, replacing an older
    one; every rank calls it too. Both raise TrainerError if the checkpoint cannot be written.
    """
    hidden = folder.parent / f".leftover-{folder.name}-shards"  # cleared with all leftovers
    with _agreed(ranks, f"checkpoint {folder} was not written"):
        if ranks.rank == 0:
            shutil.rmtree(hidden, ignore_errors=True)
            hidden.mkdir(parents=True)
    tensors = {f"{_WEIGHTS}{name}": tensor for name, tensor in checkpoint.weights.items()}
    tensors |= {f"{_STATE}{name}": tensor for name, tensor in checkpoint.state.items()}
    told = ranks.told(json.dumps([*tensors]))
    names = list(dict.fromkeys(name for said in told for name in json.loads(said)))
    writer = HuggingFaceStorageWriter(str(hidden), save_distributed=True)
    writing: Any = async_save(tensors, storage_writer=writer, process_group=ranks.background)

    def finish() -> None:
        with _agreed(ranks, f"checkpoint {folder} was not written"), _as_os_error():
            writing.result()
        with _agreed(ranks, f"checkpoint {folder} was not written"):
            if ranks.rank == 0:
                put_folder(folder, lambda place: _fill(place, hidden, checkpoint, names))
                shutil.rmtree(hidden, ignore_errors=True)

    return finish


def read_shards(
    folder: Path,
    state: ShardedState,
    ranks: Ranks,
    check_shape: Callable[[Mapping[str, Any], Path], None],
) -> Checkpoint:
    """Read and verify a checkpoint; every rank calls this together.

    Args:
        state: whose layout the optimizer's tensors get; weights are whole.
        check_shape: refuses a model of another shape.

    Raises TrainerError if there is no checkpoint, or it is damaged or of a newer format.
    """
    if not (folder / SHARDED_META).is_file():
        raise TrainerError(f"no checkpoint in {folder}; expected a folder with {SHARDED_META}")
    with as_trainer_error(f"checkpoint {folder} cannot be read"):
        meta = read_meta(folder / SHARDED_META)
        check_shape(meta["model"], folder)
    with _agreed(ranks, f"checkpoint {folder} cannot be read"):
        if ranks.rank == 0 and _checksums(folder) != meta["files"]:
            raise TrainerError(f"checkpoint {folder} is damaged: a file differs from its checksum")
    tensors = _places(meta["tensors"], state)
    with warnings.catch_warnings():
        # torch warns of a process that plans alone.
        warnings.simplefilter("ignore")
        reader = HuggingFaceStorageReader(str(folder))
        with as_trainer_error(f"checkpoint {folder} cannot be read"), _as_os_error():
            load(tensors, storage_reader=reader)
    weights = {k.removeprefix(_WEIGHTS): v for k, v in tensors.items() if k.startswith(_WEIGHTS)}
    return Checkpoint(
        version=meta["version"],
        model=meta["model"],
        settings=meta["settings"],
        learning_rate=meta["learning_rate"],
        reference=meta["reference"],
        base_checksum=meta.get("base_checksum"),
        weights=state.whole(weights),
        state={k.removeprefix(_STATE): v for k, v in tensors.items() if k.startswith(_STATE)},
    )


def sharded_weights(folder: Path) -> Mapping[str, torch.Tensor]:
    """Return the verified whole weights of a checkpoint, each read when it is asked for.

    Raises:
        TrainerError: the checkpoint is damaged or of a newer format.
    """
    with as_trainer_error(f"checkpoint {folder} cannot be read"):
        if _checksums(folder) != read_meta(folder / SHARDED_META)["files"]:
            raise TrainerError(f"checkpoint {folder} is damaged: a file differs from its checksum")
        return ShardedTensors(folder, _WEIGHTS)


def _fill(place: Path, hidden: Path, checkpoint: Checkpoint, names: list[str]) -> None:
    """Move the shards to their final folder and write the metadata."""
    for path in hidden.glob("*.safetensors"):
        path.rename(place / path.name)
    meta = {
        "format": FORMAT,
        **asdict(replace(checkpoint, weights={}, state={})),
        "tensors": names,
        "files": _checksums(place),
    }
    (place / SHARDED_META).write_text(json.dumps(meta, indent=1, sort_keys=True))


def _checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each tensor file by name."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _places(names: list[str], state: ShardedState) -> dict[str, torch.Tensor]:
    """Return empty tensors to read into, laid out as in `state`, for the names that it has."""
    parameters = state.layouts()
    places = {}
    for full in names:
        name, _, kind = full.removeprefix(_STATE).removeprefix(_WEIGHTS).partition("/")
        if full == f"{_STATE}{RNG}":
            places[full] = torch.Generator().get_state()
        elif kind == "step":
            places[full] = torch.zeros(())
        elif kind == REFERENCE:
            places[full] = torch.zeros(state.shapes[name])
        elif name in parameters:
            places[full] = torch.zeros_like(parameters[name])
    return places


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Convert the error of all ranks if files fail in one; torch raises no `Exception` there."""
    try:
        yield
    except CheckpointException as error:
        failures = "; ".join(str(failure[0]) for failure in error.failures.values())
        raise OSError(failures) from error


@contextmanager
def _agreed(ranks: Ranks, what: str) -> Iterator[None]:
    """Raise TrainerError in all ranks if the block fails in one, so that none waits for it."""
    failed: Exception | None = None
    try:
        with as_trainer_error(what):
            yield
    except TrainerError as error:
        failed = error
    if ranks.max(float(failed is not None)) and failed is None:
        failed = TrainerError(f"{what}: see the error of another rank")
    if failed is not None:
        raise failed
