"""`TrainWorker`: one rank of a trainer as a Ray actor, with the weight store that it publishes to.

A trainer of several ranks is a gang of these workers. After they are placed, `gather_ranks` makes
them one process group; until then they hold no trainer. The invariant: every rank makes the same
calls in the same order; only the first rank publishes, removes versions, and returns results.

Versions are published in a thread of the first rank (`trainers.checkpoint.publishing`), from copies
of the weights that the thread makes before the next update. Gathering the weights of several ranks
takes all of them, and is part of the step.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import RanksLostError
from rollart_flow.resources import CPU, ActorTrainCls, Placement, TypedCluster, register
from rollart_flow.resources.blocking import report_waits, working
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.resources.nodes import node_address
from rollart_flow.rows import from_ipc, to_ipc
from rollart_flow.store.step_logprobs import write_step_logprobs
from rollart_flow.trainers.base import StepResult, Trainer
from rollart_flow.trainers.build import build_trainer
from rollart_flow.trainers.checkpoint.publishing import Publication, Publisher
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.types import Retried
from rollart_flow.weights import open_weights
from rollart_flow.weights.folder_store import folder_store_of, local_path
from rollart_flow.weights.terms import FolderTerm

if TYPE_CHECKING:
    from rollart_flow.trainers.ranks import Ranks, Rendezvous
    from rollart_flow.weights.memory import WeightSnapshot

_NICENESS = 5
"""Niceness of a trainer on CPUs, which it shares with the streams. Work of the streams is short and
others wait for it, so training yields to it (`bench_streams` measures both)."""


class TrainWorker(ActorTrainCls):
    """Trains one policy, publishes its versions and saves its checkpoints."""

    def __init__(
        self,
        placement: Placement,
        *,
        run: str,
        settings: RankSettings,
        algorithm: Algorithm,
        folder: str,
        weights: str,
        weights_uri: str,
    ) -> None:
        """Create the worker; `run` is the address of the run, `folder` holds the initial policy,
        `weights_uri` the published versions.
        """
        super().__init__(placement)
        report_waits(run, placement.worker)
        if placement.granted == CPU:
            os.nice(_NICENESS)
        self._timeout_s = settings.collective_timeout_s
        self._build: Callable[[Ranks | None], Trainer] = lambda ranks: build_trainer(
            settings, algorithm, local_path(folder), ranks
        )
        self._publisher = Publisher(open_weights(weights, weights_uri))
        self._run, self._keeps_logprobs = run, settings.keep_logprobs
        self._result: StepResult | None = None
        self._finish_save: Callable[[], None] | None = None
        self._put_in_place: Callable[[], None]
        self._rendezvous: Rendezvous | None = None
        self._lost = False
        if placement.world_size == 1:
            with working("start of the trainer"):
                self._trainer = self._build(None)

    @register("rank_zero")
    def invite(self, *, loopback: bool) -> str:
        """Listen for the other ranks and return the address to join.

        Args:
            loopback: whether all ranks are on this node, so that other nodes need no access.
        """
        from rollart_flow.trainers.ranks import LOOPBACK, Rendezvous

        host = LOOPBACK if loopback else node_address()
        self._rendezvous = Rendezvous(host, self.placement.world_size, self._timeout_s)
        return self._rendezvous.address

    @register()
    def join(self, address: str) -> None:
        """Become a rank of the process group of all workers, and build the trainer.

        Raises:
            RanksLostError: another rank did not come.
        """
        from rollart_flow.trainers.ranks import join_at

        rank, count = self.placement.rank, self.placement.world_size
        with working(f"the other {count - 1} ranks"):
            ranks = join_at(address, rank, count, self._rendezvous, self._timeout_s)
        with working("start of the trainer"):
            self._trainer = self._build(ranks)

    @register("first_result")
    def train_step(self, step: int, batch: bytes) -> StepResult:
        """Train on one batch, given as an Arrow IPC stream; see `Trainer.train_or_skip`.

        Logprobs that are kept are in the run's folder when this returns. A repeated call for the
        last trained step returns the same result.
        """
        if self._result is None or self._result.step != step:
            if self._result is None:
                freeze_heap()
            with self._using_trainer(f"step {step}"):
                result = self._trainer.train_or_skip(step, from_ipc(batch))
            if self._keeps_logprobs and self._trainer.step_logprobs is not None:
                self._keep(step, self._trainer.step_logprobs)
            self._result = result
        return self._result

    def _keep(self, step: int, logprobs: pa.Table) -> None:
        """Write the logprobs of a step; the first rank has those of all ranks."""
        if not self.placement.rank:
            write_step_logprobs(self._run, step, logprobs)

    @register("first_result")
    def recompute_old_logprobs(self, batch: bytes) -> bytes:
        """Return logprobs and values of a batch under the current weights, as Arrow IPC.

        See `Trainer.recompute_old_logprobs`.
        """
        with self._using_trainer("old logprobs of a batch"):
            found = self._trainer.recompute_old_logprobs(from_ipc(batch))
        return to_ipc(found)

    @register("first_result")
    def publish(self, *, lasting: bool) -> Publication | None:
        """Publish the current weights under the current version; None from other ranks.

        Args:
            lasting: whether the version must outlive this run's processes.
        """
        weights, trainer = self._snapshot(), self._trainer
        if self.placement.rank:
            return None
        return self._publisher.publish(
            trainer.version, weights.tensors, trainer.checksum, trainer.adapter, lasting=lasting
        )

    @register()
    def publish_missing(self) -> None:
        """Publish the current weights under the current version, unless it can be read."""
        weights, trainer = self._snapshot(), self._trainer
        if not self.placement.rank:
            self._publisher.publish_missing(
                trainer.version, weights.tensors, trainer.checksum, trainer.adapter
            )

    @register("first_result")
    def begin_publish(self, announce: Callable[[int, float], None]) -> Publication | None:
        """Begin to publish the current weights, which need not last, under the current version.

        Args:
            announce: called with the version and the seconds that publishing took, once the
                weights can be read.
        """
        weights, trainer = self._snapshot(), self._trainer
        if self.placement.rank:
            return None
        return self._publisher.begin(
            trainer.version, weights, trainer.checksum, announce, trainer.adapter
        )

    @register("first_result")
    def finish_publish(self) -> tuple[Retried, ...]:
        """Wait until the publication that was begun is complete; raise its error if it failed.

        Return what was repeated since the last call because the weight store failed.
        """
        self._publisher.finish()
        return self._publisher.retried()

    def _snapshot(self) -> "WeightSnapshot":
        """Return the weights at this moment; all ranks call this together."""
        with self._using_trainer("copy of the weights"):
            return self._trainer.snapshot_weights()

    @register()
    def offload(self) -> int:
        """Free the device for the engine worker that holds it in turns with this rank, until the
        trainer is next used; return the number of freed bytes.
        """
        return self._trainer.offload()

    @register()
    def retain(self, newest: int, keep: frozenset[int]) -> None:
        """Remove published versions except the newest and those in `keep`, after any publication
        in progress."""
        if not self.placement.rank:
            self._publisher.retain(newest, keep)

    @register()
    def continue_from(self, version: int, term: FolderTerm) -> None:
        """Remove versions above the one that a run continues from: a step that was published before
        a kill, but not recorded, is trained again, and may give other weights."""
        if not self.placement.rank:
            self._publisher.continue_from(version, term)

    @register()
    def begin_save(self, folder: str) -> None:
        """Begin to save a checkpoint of the current version; see `Trainer.begin_save`.

        Args:
            folder: address of the checkpoint; a checkpoint for S3 is first written locally.
        """
        place, name = folder_store_of(folder)
        with self._using_trainer(f"begin of checkpoint {name}"):
            self._finish_save = self._trainer.begin_save(place.workshop(name))
        self._put_in_place = partial(place.finish, name)

    @register()
    def finish_save(self) -> None:
        """Return once the checkpoint that was begun is saved."""
        if self._finish_save is not None:
            with self._using_trainer("end of a checkpoint"):
                self._finish_save()
            if not self.placement.rank:
                self._put_in_place()
        self._finish_save = None

    @register()
    def load(self, folder: str) -> int:
        """Restore the checkpoint at an address and return its version."""
        self._result = None
        with self._using_trainer("load of a checkpoint"):
            self._trainer.load_from(folder)
        return self._trainer.version

    @register()
    def version(self) -> int:
        """Return the number of the last finished step."""
        return self._trainer.version

    @register()
    def lost(self) -> bool:
        """Return whether this rank has lost another one, which died or hangs."""
        return self._lost

    @contextmanager
    def _using_trainer(self, what: str) -> Iterator[None]:
        """Have the trainer's memory on the device, and remember the loss of another rank."""
        try:
            with working(what):
                self._trainer.reload()
                yield
        except RanksLostError:
            self._lost = True
            raise


def gather_ranks(trainers: TypedCluster[TrainWorker]) -> bool:
    """Make the workers of a trainer one process group; a single worker needs none.

    They meet at an address of the first worker's node: loopback if all are on that node.

    Returns:
        Whether all are on one node.

    Raises:
        RunFailedError: a worker could not start.
        TrainerError: a worker was lost on the way.
    """
    if len(trainers.workers) == 1:
        return True
    together = len(set(trainers.wait_until_ready())) == 1
    trainers.call.join(trainers.call.invite(loopback=together))
    return together
