"""A run with rows of every kind, which the store's writer writes in about a second.

`rollart ui --demo` shows it, and the tests of the interface read it. No policy was trained and no
environment ran: all values follow from `rollart_flow.ui.demo`. They are equal in every run that is
written, except for names of data files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from tokenizers import Tokenizer

from rollart_flow.attempt_rows import rows_beside
from rollart_flow.models.tokenizer import tiny_tokenizer, tiny_tokenizer_files
from rollart_flow.rows import events_table, trajectories_table
from rollart_flow.store import Run, RunInfo, RunStatus, RunWriter, open_run
from rollart_flow.store.encoding import Rows
from rollart_flow.store.images import ImageFolder
from rollart_flow.store.info import Parent
from rollart_flow.store.layout import policy_uri, write_pipeline
from rollart_flow.store.replays import write_replayed
from rollart_flow.store.step_logprobs import write_step_logprobs
from rollart_flow.types import Event, EventKind, Outcome, Reason, Split, Trajectory
from rollart_flow.types.events import TRAINABLE, WITHHELD
from rollart_flow.ui.demo import tables
from rollart_flow.ui.demo.agents import repair
from rollart_flow.ui.demo.attempts import (
    BEGAN,
    GROUP_SIZE,
    STEP_S,
    DemoSlot,
    at,
    domains_of,
    ended_early,
    formed_s,
    lake,
    pictures,
    sums,
)
from rollart_flow.ui.demo.texts import WORDS

STEPS = 6
FORKED_AT = 4
REPLAYED_STEP = 3
"""Step whose first attempt at a repair has logprobs of a replay; later steps keep the trainer's."""
_PIPELINE = '"""The pipeline of the demonstration run, which never ran."""\n'


def write_demo_run(store: str | Path, name: str = "demo", *, parent: Run | None = None) -> Run:
    """Write the demonstration run into a store, and open it.

    Args:
        store: folder that serves as store; the run lies in a folder of its name there.
        name: name of the run.
        parent: run that this one was forked from, at step `FORKED_AT`: it then has the same tasks
            with other settings, and two steps.

    Raises:
        RunExistsError: there is a run of the name already.
        StoreError: the folder cannot be written.
    """
    return _DemoRun(Path(store) / name, parent).write()


@dataclass
class _DemoRun:
    """The run as it is written."""

    folder: Path
    parent: Run | None

    def write(self) -> Run:
        alpha = 1.0 if self.parent is None else 2.0
        buffer = {"kind": "buffer", "alpha": alpha, "batch_size": 3 * GROUP_SIZE}
        settings = {"name": "demo", "nodes": {"buffer": buffer, "train": {"kind": "train"}}}
        parent = None if self.parent is None else Parent(self.parent.uri, FORKED_AT)
        info = RunInfo(self.folder.name, "demo", 7, settings, parent=parent, created_at=BEGAN)
        self.now_s = 0.0
        uri = str(self.folder)
        self.writer = RunWriter.create(
            uri, replace(info, overrides={"buffer.alpha": alpha}), clock=self._clock
        )
        self.images = ImageFolder(uri)
        self.tokenizer = tiny_tokenizer(WORDS)
        self._begin()
        first = 1 if self.parent is None else FORKED_AT + 1
        for step in range(first, STEPS + 1):
            self._step(step)
        self._end()
        return open_run(uri)

    def _clock(self) -> int:
        """Time of the run's next commit [ns since the epoch]."""
        return int(at(self.now_s).timestamp() * 1e9)

    def _begin(self) -> None:
        write_pipeline(self.writer.uri, _PIPELINE)
        policy = Path(policy_uri(self.writer.uri))
        policy.mkdir()
        for name, text in tiny_tokenizer_files(WORDS, 8192).items():
            (policy / name).write_text(text)
        self.writer.commit_many(
            {
                "weights": tables.weights_table(0),
                "evaluations": tables.evaluations_table(0),
                "bindings": tables.bindings_table(),
                "admissions": tables.admissions_table(STEPS),
            }
        )

    def _step(self, step: int) -> None:
        """Write the rows of a step, in the order in which a run commits them."""
        attempted = [*members_of(step, self.tokenizer)]
        members = [each for each in attempted if each.reason not in WITHHELD]
        lost = [*ended_early(step, self.tokenizer), *untrained(step, self.tokenizer)]
        self._trajectories(formed_s(step) - 1.0, [*attempted, *lost])
        manifest = tables.batch_rows(step, members)
        events = [*tables.step_events(step, [*members, *lost]), *departures(step, lost)]
        self._commit(formed_s(step), {"batches": manifest, "events": events_table(events)})
        if step == REPLAYED_STEP:
            first = next(each for each in members if each.domain == "repair")
            kept = tables.replayed_logprobs(step, first)
            write_replayed(self.writer.uri, first.trajectory_id, kept)
        if step > REPLAYED_STEP:
            write_step_logprobs(self.writer.uri, step, tables.kept_logprobs(members))
        ended: dict[str, Rows] = {
            "steps": tables.step_table(step, members, manifest),
            "weights": tables.weights_table(step),
        }
        if step % 2 == 0:
            ended["evaluations"] = tables.evaluations_table(step)
        self._commit(step * STEP_S, ended)

    def _end(self) -> None:
        evaluated = [
            lake(DemoSlot(STEPS, "lake", attempt, Split.EVALUATION), self.tokenizer)
            for attempt in range(GROUP_SIZE)
        ]
        cancelled = replace(
            sums(DemoSlot(STEPS + 1, "sums", 0), self.tokenizer),
            outcome=Outcome.CANCELLED, reason=Reason.RUN_STOPPED, reward=None, reward_parts=None,
            scored_at=None, solved=None,
        )  # fmt: skip
        self._trajectories((STEPS + 1) * STEP_S, [*evaluated, cancelled])
        self._commit((STEPS + 1) * STEP_S + 1, {"events": events_table(tables.odd_events())})
        self.writer.close(RunStatus.FINISHED)

    def _trajectories(self, seconds: float, rows: Sequence[Trajectory]) -> None:
        self.images.put(image for each in rows for image in each.images or ())
        committed: dict[str, Rows] = {"trajectories": trajectories_table(rows)}
        if users := [each for each in rows if each.verdicts]:
            committed["sandboxes"] = tables.sandboxes_table(users)
        self._commit(seconds, {**committed, **rows_beside(rows)})

    def _commit(self, seconds: float, rows: dict[str, Rows]) -> None:
        self.now_s = seconds
        self.writer.commit_many(rows)


def members_of(step: int, tokenizer: Tokenizer) -> Iterator[Trajectory]:
    """Yield the rows that a step trains on, group by group."""
    of_domain = {"lake": lake, "sums": sums, "pictures": pictures}
    for domain in domains_of(step):
        for attempt in range(GROUP_SIZE):
            slot = DemoSlot(step, domain, attempt)
            if domain == "repair":
                yield from (row for row in repair(slot, tokenizer))
            else:
                yield of_domain[domain](slot, tokenizer)


def untrained(step: int, tokenizer: Tokenizer) -> Iterator[Trajectory]:
    """Yield attempts of a group that was evicted, and two that filters refused."""
    for attempt in range(GROUP_SIZE):
        yield lake(DemoSlot(step, "lake", attempt, spare=1), tokenizer)
    yield sums(DemoSlot(step, "sums", 0, spare=1), tokenizer)
    refused = sums(DemoSlot(step, "sums", 1, spare=2), tokenizer)
    yield replace(refused, reward=None, reward_parts=None, scored_at=None)


def departures(step: int, lost: Sequence[Trajectory]) -> Iterator[tuple[datetime, Event]]:
    """Yield the events by which completed attempts left the buffer untrained."""
    for each in lost:
        if each.outcome not in TRAINABLE:
            continue
        kind, reason, detail = EventKind.EVICT, Reason.STALENESS_BOUND, {"group_id": each.group_id}
        if each.domain == "sums":
            kind, reason = EventKind.DROP, Reason.GROUP_FILTERED
            detail["filter"] = "varied" if each.reward is not None else "complete"
        if each.reward is None:
            reason = Reason.FILTERED
        served = max(0, step - 2)
        left = Event(kind, each.trajectory_id, reason, each.domain, served, step, detail)
        yield at(formed_s(step)), left
