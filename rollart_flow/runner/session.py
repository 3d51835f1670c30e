"""The driver's session of one run: its streams, its progress, and its end.

The streams run in threads; the main thread only waits for messages, so that it receives signals.
However a run ends, committed rows remain, `run.json` records how it ended, and `resume` continues
from there. Every wait of the end has a limit, after which the session goes on without the process
that hangs and records the end itself; all limits together are less than a minute.

A run needs its buffer, its coordinator, and its trainer, whose state is in the tables. If one of
them dies, it restarts alone: Ray restarts the buffer and the coordinator, and the session restarts
all ranks of the trainer. If that fails, all processes restart and the run continues from the
tables, as with `resume`.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

from rollart_flow.blocked import blocking
from rollart_flow.errors import ClusterLostError, RollartError, RunFailedError
from rollart_flow.operators.trained import Trained
from rollart_flow.pipeline import Pipeline
from rollart_flow.resources.blocking import driver_waits
from rollart_flow.resources.local import wait
from rollart_flow.resources.reasons import failures
from rollart_flow.retries import unrepeated
from rollart_flow.runner.dataflow import Dataflow, Stream
from rollart_flow.runner.executors import Executor
from rollart_flow.runner.messages import (
    Ended,
    Messages,
    as_run_failure,
    cluster_lost,
    follow,
    watch_for_failure,
)
from rollart_flow.runner.noticed import telling_errors
from rollart_flow.runner.observer import LOOK, RunObserver
from rollart_flow.runner.processes import RunProcesses, start_processes
from rollart_flow.runner.retrain import catch_up
from rollart_flow.runner.signals import interrupt_deferred, terminable
from rollart_flow.runner.trainer_restart import only_trainer_died, restart_trainer
from rollart_flow.store import Run, RunStatus, RunWriter, read_info
from rollart_flow.store.lease import Lease
from rollart_flow.telemetry import OnProgress, Progress, one_at_a_time

_log = logging.getLogger(__name__)
_STREAMS_S = 10.0
"""Limit of the end of the streams, once the coordinator has been asked to stop [s]."""
_THREADS_S = 10.0
"""Limit of the end of the streams' threads, once all processes of the run were ended [s]."""
_CLOSE_S = 10.0
"""Limit of the buffer's last commit, unless the run has finished [s]."""

RESTARTS = 3
"""Maximum number of consecutive restarts of the trainer or of all processes without a training step
in between."""

_CONSUMER = "consumer"


class Session:
    """Session that drives the streams of one run to their end."""

    def __init__(
        self,
        executor: Executor,
        pipeline: Pipeline,
        uri: str,
        source: str | None,
        on_progress: OnProgress,
        lease: Lease,
    ) -> None:
        self._executor = executor
        self._pipeline = pipeline
        self._uri = uri
        self._source = source
        self._lease = lease
        self._on_progress = one_at_a_time(on_progress)
        self._observer = RunObserver(pipeline, uri, self._on_progress)
        self._messages: Messages = SimpleQueue()
        self._processes: RunProcesses | None = None
        self._running_streams: list[Future[None]] = []
        self._restarts = 0
        self._accept_divergence = False

    def run(self, *, accept_divergence: bool = False) -> None:
        """Run until the last evaluation, a failure, or a KeyboardInterrupt.

        Raises:
            RunFailedError: the run failed; `run.json` records the reason too.
            KeyboardInterrupt: the run was interrupted, and can be resumed.
        """
        with (
            terminable(),
            driver_waits(self._uri),
            telling_errors(self._uri, self._on_progress),
            self._observer.tracking(self._lease.tenure),
        ):
            self._on_progress(Progress.begun(self._uri))
            self._run(accept_divergence=accept_divergence)

    def _run(self, *, accept_divergence: bool) -> None:
        status = RunStatus.FAILED
        error: str | None = "ended by an unexpected error"
        died: tuple[str, ...] = ()
        try:
            while died := self._attempt(died, accept_divergence=accept_divergence):
                self._on_progress(
                    Progress.note(f"{', '.join(died)} died; going on from the tables")
                )
            status, error = RunStatus.FINISHED, None
        except KeyboardInterrupt:
            status, error = RunStatus.INTERRUPTED, None
            raise
        except failures(RollartError) as raised:
            failure = as_run_failure("run", raised)
            error = str(failure)
            _log.warning("the run failed: %s", error, exc_info=raised)
            if failure is raised:
                raise
            raise failure from raised
        finally:
            try:
                with nullcontext() if status is RunStatus.FINISHED else unrepeated():
                    self._end(self._processes, status, error)
            except failures(RollartError) as unrecorded:
                if status is RunStatus.FINISHED:
                    raise as_run_failure("run", unrecorded) from unrecorded
                # The original error says more; the run reads as interrupted.
            finally:
                self._shut_down()
                if wait_for(self._running_streams, _THREADS_S).not_done:
                    self._executor.abandon()

    def _attempt(self, died: tuple[str, ...], *, accept_divergence: bool) -> tuple[str, ...]:
        """Start all processes and run to the end, or until an indispensable process dies.

        Args:
            died: processes whose death ended the last attempt.
            accept_divergence: continue even if a recomputed step differs from the recorded one.

        Returns:
            Names of the dead processes; empty if the run has ended.
        """
        total = self._pipeline.train.steps
        self._accept_divergence = accept_divergence
        self._messages = SimpleQueue()
        self._on_progress(Progress.phase("starting the workers", total_steps=total))
        self._processes = processes = start_processes(
            self._executor, self._pipeline, self._uri, self._lease.tenure
        )
        try:
            processes.report_restarted(died)
            for requested, granted in processes.fallbacks:
                self._on_progress(Progress.note(f"no {requested} here, {granted} is used instead"))
            run = Run(self._uri)
            catch_up(run, processes, self._on_progress, accept_divergence=accept_divergence)
            processes.begin()
            self._drive(run, processes)
        except ClusterLostError:
            self._processes = None  # none of them can be called any more, or ended
            self._executor.abandon()
            raise
        except failures(RollartError):
            died = processes.dead()
            if not died or self._restarts == RESTARTS:
                raise
            self._restarts += 1
            self._shut_down()
            return died
        return ()

    def _shut_down(self) -> None:
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.shutdown()

    def _end(self, processes: RunProcesses | None, status: RunStatus, error: str | None) -> None:
        """Record how the run ended, through the buffer's writer if the buffer answers."""
        finished = status is RunStatus.FINISHED
        if processes is not None:
            processes.end_sandboxes(_CLOSE_S)
            closing = processes.buffer.call.close.start(status, error)
            try:
                wait(closing, "BufferActor.close", None if finished else _CLOSE_S)
                return
            except failures(TimeoutError):
                if finished:
                    raise
                processes.buffer.kill()
        if read_info(self._uri).status is not status:
            writer = RunWriter.open(self._uri, self._lease.tenure)
            writer.close(status, error, maintain=False)

    def _drive(self, run: Run, processes: RunProcesses) -> None:
        self._observer.drives(run, processes, self._messages)
        streams = Dataflow(self._pipeline, self._uri, processes, self._source)
        named: dict[str, Stream] = {_CONSUMER: streams.consumer, "evaluation": streams.evaluation}
        if not self._pipeline.offline:
            named = {"producer": streams.producer, **named}
        doing = "training on what is stored" if self._pipeline.offline else "rolling out"
        self._on_progress(Progress.phase(doing, total_steps=self._pipeline.train.steps))
        threads = ThreadPoolExecutor(len(named) + 1, thread_name_prefix="stream")
        self._running_streams = running = []
        try:
            self._lease.on_lost(lambda said: self._messages.put(RunFailedError(said)))
            self._executor.on_lost(lambda said: self._messages.put(cluster_lost(said, self._uri)))
            with interrupt_deferred():
                for name, stream in named.items():
                    running.append(threads.submit(follow, name, stream, self._messages))
                running.append(threads.submit(watch_for_failure, processes, self._messages))

            def consume(stream: Stream) -> None:
                running.append(threads.submit(follow, _CONSUMER, stream, self._messages))

            self._wait(set(named), consume)
        finally:
            # If the coordinator has died, the streams end by themselves: all of them call it.
            processes.coordinator.call.keep_stopped.start()
            with blocking("end of the streams"):
                wait_for(running, _STREAMS_S)
            threads.shutdown(wait=False)  # a thread that a process holds ends with that process

    def _wait(self, open_streams: set[str], consume: Callable[[Stream], object]) -> None:
        """Handle messages until every stream has ended.

        The first failure ends the run, unless `consume` can go on with another consumer.
        """
        while open_streams:
            with blocking(f"messages of {', '.join(sorted(open_streams))}"):
                message = self._observer.next_message()
            if isinstance(message, RunFailedError):
                raise message
            if not isinstance(message, Ended):
                self._show(*message)
            elif message.error is not None:
                consume(self._other_consumer(message.stream, message.error))
            else:
                open_streams.discard(message.stream)
                if open_streams == {"producer"}:
                    self._running.coordinator.call.keep_stopped.start()

    def _other_consumer(self, stream: str, error: Exception) -> Stream:
        """Restart the trainer if its death ended the consumer, and return the next consumer.

        Raises:
            RunFailedError: the error has another cause.
        """
        processes, pipeline = self._running, self._pipeline
        died = processes.dead() if stream == _CONSUMER else ()
        alone = only_trainer_died(processes, pipeline, died)
        if not alone or self._restarts == RESTARTS:
            raise as_run_failure(stream, error) from error
        self._restarts += 1
        self._on_progress(Progress.note(f"{', '.join(died)} died; the trainer starts again"))
        processes.report_restarted(died)
        self._processes = processes = restart_trainer(
            processes,
            pipeline,
            self._uri,
            self._on_progress,
            accept_divergence=self._accept_divergence,
        )
        return Dataflow(pipeline, self._uri, processes, self._source).consumer

    @property
    def _running(self) -> RunProcesses:
        assert self._processes is not None, "the run has begun"
        return self._processes

    def _show(self, stream: str, item: Any) -> None:
        if isinstance(item, Trained):
            self._restarts = 0
            total = self._pipeline.train.steps
            progress = Progress.step(
                item.row, total_steps=total, rewards=item.rewards, committed=item.committed
            )
            self._on_progress(progress)
            self._observer.step(item.row)
            if (why := item.row["skipped"]) is not None:
                self._on_progress(Progress.note(f"step {item.row['step']} was skipped: {why}"))
        elif stream == "evaluation":
            self._on_progress(Progress.evaluation(item))
            self._observer.evaluation()
        elif stream == LOOK:
            self._observer.look()
