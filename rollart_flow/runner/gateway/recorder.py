"""GatewayRecorder: the run of a gateway by hand, and the conversations that are committed to it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from rollart_flow.attempt_rows import rows_beside
from rollart_flow.control.environment import ChatCodec
from rollart_flow.control.ids import group_name
from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.errors import RunExistsError
from rollart_flow.gateway.core.rows import Rows
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.gateway.core.stored import with_exchanges
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.operators.committer import Committer
from rollart_flow.rows import events_table, trajectories_table
from rollart_flow.runner.gateway.settings import GatewaySettings
from rollart_flow.runner.setup import publish_start, removed_if_refused
from rollart_flow.store import RunInfo, RunStatus, RunWriter, files, new_run_uri
from rollart_flow.store.images import ImageFolder
from rollart_flow.store.layout import policy_uri, run_names
from rollart_flow.store.lease import Lease
from rollart_flow.types import Assignment, Event, EventKind, Outcome, Sampling, Task, Trajectory
from rollart_flow.weights.folder_store import made

DOMAIN = "gateway"
"""Domain of the attempts of a gateway by hand, which have no environment."""
_INTERVAL_S = 0.1
_MAX_ROWS = 64


@contextmanager
def gateway_run(settings: GatewaySettings, policy: Policy) -> Iterator[RunWriter]:
    """Provide the writer of a new run, which has the policy, and record how the run ends.

    A run that is refused before it has any trajectory is removed.

    Raises:
        RunExistsError: the name is taken.
        StoreError: the store cannot be written.
        SettingsError: the policy has no usable chat template, or is no model that is known.
    """
    name = settings.name or _free_name(settings.store)
    uri = new_run_uri(name, settings.store)
    node = {**asdict(settings), "kind": DOMAIN}
    described = {"policy": asdict(policy), "nodes": {DOMAIN: node}}
    try:
        writer = RunWriter.create(uri, RunInfo(name, DOMAIN, seed=0, settings=described))
    except RunExistsError as error:
        said = f"there is a run at {uri} already; choose another --name"
        raise RunExistsError(said) from error
    with removed_if_refused(uri), Lease(uri):
        started = Event(EventKind.RUN, name, detail={"pipeline": DOMAIN})
        writer.commit("events", events_table([(datetime.now(UTC), started)]))
        try:
            with made(policy_uri(uri)) as folder:
                materialize(policy, folder)
            publish_start(uri, writer, 0, checkpoint=False)
            yield writer
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            status = RunStatus.INTERRUPTED if interrupted else RunStatus.FAILED
            writer.close(status, None if interrupted else files.one_line(error))
            raise
        writer.close(RunStatus.FINISHED)


def _free_name(store: str | None) -> str:
    taken = set(run_names(store))
    return next(
        name for number in range(1, len(taken) + 2) if (name := f"{DOMAIN}-{number}") not in taken
    )


def assignment_of(number: int, sampling: Sampling) -> Assignment:
    """Return the attempt that the conversation with a number is, which is a task of its own."""
    group = group_name(number)
    return Assignment(
        trajectory_id=f"{group}-00",
        group_id=group,
        task=Task(f"conversation-{number}", DOMAIN),
        attempt=0,
        env_seed=0,
        sampling=sampling,
    )


@dataclass(frozen=True, slots=True)
class GatewayResult:
    """The run that a gateway recorded, and its counts."""

    run: str
    conversations: int
    calls: int
    tokens: int
    """Sampled tokens."""


class GatewayRecorder:
    """Commits conversations, in the running event loop.

    Args:
        writer: writer of the run.
        codec: codec of the policy.
        sampling: sampling of all calls.
    """

    def __init__(self, writer: RunWriter, codec: ChatCodec, sampling: Sampling) -> None:
        self._codec, self._sampling = codec, sampling
        self._committer = Committer(writer, max_rows=_MAX_ROWS, interval_s=_INTERVAL_S)
        self._images = ImageFolder(writer.uri)
        loop = asyncio.get_running_loop()
        self._loop_began = datetime.now(UTC) - timedelta(seconds=loop.time())
        self.emit = self._committer.report
        self._uri = writer.uri
        self._begun: set[int] = set()
        """Numbers of the conversations that have rows."""
        self._conversations = self._calls = self._tokens = 0

    def wall(self, seconds: float) -> datetime:
        """Return the UTC time of a time of the loop."""
        return self._loop_began + timedelta(seconds=seconds)

    async def record(self, number: int, session: CaptureSession) -> None:
        """Commit what a session has by now and no commit before had; return once it is durable.

        A session that goes on afterwards has its further rows, of the same episode, with the next
        commit. One without calls leaves nothing.

        Raises:
            StoreError: it could not be written.
        """
        name = assignment_of(number, self._sampling).trajectory_id
        rows, exchanges = session.take(name)
        if not exchanges:
            return
        if first := number not in self._begun:
            self._begun.add(number)
            rows = rows or [(Recorder(), {"trajectory_id": name, "branch": 0})]
        attempt = with_exchanges(
            self._branches(number, session, rows or [(Recorder(), {"branch": 0})]),
            exchanges, self._codec, self.wall,
        )  # fmt: skip
        if images := [image for branch in attempt for image in branch.images or ()]:
            await asyncio.to_thread(self._images.put, images)
        tables = rows_beside(attempt)
        if rows:
            tables = {"trajectories": trajectories_table(attempt), **tables}
        await self._committer.commit(tables, at_once=True)
        self._conversations += first
        self._calls += len(exchanges)
        self._tokens += sum(sum(branch.action_mask) for branch in attempt)

    def _branches(self, number: int, session: CaptureSession, rows: Rows) -> tuple[Trajectory, ...]:
        """Return rows of a session as trajectories of its attempt."""
        calls = session.exchanges
        return tuple(
            recorder.trajectory(
                assignment_of(number, self._sampling),
                AttemptResult(Outcome.COMPLETED),
                created_at=self.wall(calls[0].arrived),
                finished_at=self.wall(max(each.ended for each in calls)),
                reset_s=0.0,
                env_version="",
                solved=None,
                columns=columns,
            )
            for recorder, columns in rows
        )

    def result(self) -> GatewayResult:
        """Return what is recorded by now."""
        return GatewayResult(self._uri, self._conversations, self._calls, self._tokens)

    async def close(self) -> None:
        """Commit what is queued."""
        await self._committer.close()
