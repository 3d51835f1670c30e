"""Ranks of a trainer in processes of their own, called as one trainer.

The first rank is started anew and imports what all of them need, which takes seconds; the others
are forked from it before it computes anything.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.language_model import ModelShape
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.trainers.base import StepResult, Trainer
from rollart_flow.trainers.checkpoint.checkpoint import Checkpoint
from rollart_flow.trainers.settings import RankSettings

RANKS = 2
MAKE, CALL = "make", "call"


class Gang:
    """The processes; every call is made in all of them, and all must say the same."""

    def __init__(self, pipes: list[Connection], pids: list[int]) -> None:
        self._pipes = pipes
        self.pids = pids

    def __call__(self, *order: Any) -> list[Any]:
        """What each rank answers; the first one's error is raised if any of them failed."""
        self.tell(*order)
        answers = [self.answer(rank) for rank in range(len(self._pipes))]
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        assert len({type(answer) for answer in failed}) <= 1
        if failed:
            assert len(failed) == len(answers), "one rank failed by itself"
            raise failed[0]
        return answers

    def tell(self, *order: Any) -> None:
        """Make a call in each rank, and wait for nothing."""
        for pipe in self._pipes:
            pipe.send(order)

    def answer(self, rank: int) -> Any:
        """What one rank answers; an error is returned."""
        return self._pipes[rank].recv()


@contextmanager
def gang(
    timeout_s: float = 60.0, prepare: Callable[[], None] | None = None, ranks: int = RANKS
) -> Iterator[Gang]:
    """Ranks that live as long as the context.

    Args:
        timeout_s: their longest wait for each other.
        prepare: called in each of them before anything else.
        ranks: how many there are.
    """
    spawning = get_context("spawn")
    pipes, ends = zip(*(spawning.Pipe() for _ in range(ranks)), strict=True)
    on_cpus = torch.cuda.device_count() < ranks  # NCCL wants a GPU for each rank
    first = spawning.Process(target=_begin, args=(ends, timeout_s, prepare, on_cpus), daemon=True)
    first.start()
    for end in ends:
        end.close()
    try:
        pids = pipes[0].recv()
        address = pipes[0].recv()  # of the rendezvous
        for pipe in pipes[1:]:
            pipe.send(address)
        yield Gang(list(pipes), pids)
    finally:
        for pipe in pipes:
            pipe.close()
        first.join()


class SharedGang:
    """Two ranks for the tests of all trainers, which start when a test first needs them."""

    def __init__(self) -> None:
        self._started = ExitStack()
        self._gang: Gang | None = None

    def start(self) -> Gang:
        """The ranks, started if they do not run."""
        if self._gang is None:
            self._gang = self._started.enter_context(gang())
        return self._gang

    def end(self) -> None:
        """End them, if they run."""
        self._gang = None
        self._started.close()


SHARED_GANG = SharedGang()


def _begin(
    ends: Sequence[Connection], timeout_s: float, prepare: Callable[[], None] | None, on_cpus: bool
) -> None:
    """Import what ranks compute with, fork the others, and be the first of them."""
    if on_cpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if prepare is not None:
        prepare()
    import_module("rollart_flow.trainers.backends.fsdp2")
    import_module("rollart_flow.trainers.backends.megatron.trainer")
    freeze_heap()
    forked = []
    for rank in range(1, len(ends)):
        if not (pid := os.fork()):
            _serve(rank, ends, timeout_s)
            os._exit(0)
        forked.append(pid)
    ends[0].send([os.getpid(), *forked])
    _serve(0, ends, timeout_s)
    for pid in forked:
        os.waitpid(pid, 0)
    os._exit(0)  # as a worker is killed: nobody waits for threads


def _serve(rank: int, ends: Sequence[Connection], timeout_s: float) -> None:
    """Join the other ranks, then do what is told until the pipe is closed."""
    from rollart_flow.trainers.ranks import LOOPBACK, Rendezvous, join_at

    pipe, count = ends[rank], len(ends)
    for end in ends:
        if end is not pipe:
            end.close()
    own = Rendezvous(LOOPBACK, count, timeout_s) if rank == 0 else None
    if own is not None:
        pipe.send(own.address)
    address = own.address if own else pipe.recv()
    joined = join_at(address, rank, count, own, timeout_s)
    trainers: list[Trainer] = []
    while True:
        try:
            kind, *rest = pipe.recv()
        except EOFError:
            return
        try:
            if kind == MAKE:
                trainers.append(_make(joined, *rest))
                pipe.send(len(trainers) - 1)
            else:
                index, function, arguments = rest
                pipe.send(function(trainers[index], *arguments))
        except Exception as error:  # noqa: BLE001  crosses a process: raised again in the test
            pipe.send(error)


def _make(
    ranks: Any,
    config: ModelShape,
    tensors: Mapping[str, torch.Tensor],
    algorithm: Algorithm,
    settings: RankSettings,
) -> Trainer:
    from rollart_flow.trainers.backends.fsdp2 import Fsdp2Trainer
    from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

    backend = {"fsdp2": Fsdp2Trainer, "megatron": MegatronTrainer}[settings.backend]
    return backend(config, tensors, algorithm, settings, ranks)


class GangTrainer(Trainer):
    """One trainer of all ranks."""

    def __init__(
        self,
        ranks: Gang,
        config: ModelShape,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: RankSettings,
    ) -> None:
        self._ranks = ranks
        whole = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._index = ranks(MAKE, config, whole, algorithm, settings)[0]

    def every(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What a function says of the trainer in each rank."""
        return self._ranks(CALL, self._index, function, arguments)

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call it in each rank; `Gang.answer` gives what one of them says."""
        self._ranks.tell(CALL, self._index, function, arguments)

    @property
    def version(self) -> int:
        one, *others = self.every(_version)
        assert others == [one] * len(others)
        return int(one)

    @property
    def checksum(self) -> str | None:
        one, *others = self.every(_checksum)
        assert others == [one] * len(others)
        found: str | None = one
        return found

    def train_step(self, step: int, batch: pa.Table) -> StepResult:
        one, *others = self.every(_train_step, step, batch)
        for name in ("loss", "grad_norm", "fingerprint", "kl", "ratio_max", "ess", "entropy"):
            assert {getattr(other, name) for other in others} == {getattr(one, name)}, name
        found: StepResult = one
        return found

    def skip_step(self, step: int, batch: pa.Table, why: str) -> StepResult:
        one, *others = self.every(_skip_step, step, batch, why)
        assert {other.fingerprint for other in others} == {one.fingerprint}
        found: StepResult = one
        return found

    def recompute_old_logprobs(self, batch: pa.Table) -> pa.Table:
        one, *others = self.every(_assess, batch)
        assert all(one.equals(other) for other in others)
        found: pa.Table = one
        return found

    def weights(self) -> dict[str, torch.Tensor]:
        one, *others = self.every(_weights)
        assert all((one[name] == other[name]).all() for other in others for name in one)
        return {name: torch.from_numpy(values) for name, values in one.items()}

    def snapshot(self) -> Checkpoint:
        raise NotImplementedError("tensors of a snapshot do not travel through a pipe")

    def save(self, folder: Path) -> None:
        self.every(_save, folder)

    def load(self, folder: Path) -> None:
        self.every(_load, folder)


def _version(trainer: Trainer) -> int:
    return trainer.version


def _checksum(trainer: Trainer) -> str | None:
    return trainer.checksum


def _train_step(trainer: Trainer, step: int, batch: pa.Table) -> StepResult:
    return trainer.train_step(step, batch)


def _skip_step(trainer: Trainer, step: int, batch: pa.Table, why: str) -> StepResult:
    return trainer.skip_step(step, batch, why)


def _assess(trainer: Trainer, batch: pa.Table) -> pa.Table:
    return trainer.recompute_old_logprobs(batch)


def _weights(trainer: Trainer) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in trainer.weights().items()}


def _save(trainer: Trainer, folder: Path) -> None:
    trainer.save(folder)


def _load(trainer: Trainer, folder: Path) -> None:
    trainer.load(folder)
