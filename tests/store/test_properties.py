"""Whatever fails, restarts or is maintained, every acknowledged row is there once, in order."""

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rollart_flow.errors import FencedError, StoreError
from rollart_flow.store import RunWriter, open_run
from rollart_flow.store.run import Run
from rollart_flow.store.table_log import TableLog
from tests.builders import events, trajectories
from tests.runs import new_writer

Group = dict[str, pa.Table]


class StoreMachine(RuleBasedStateMachine):
    """A caller that numbers its commits and retries until each is acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.acknowledged: list[str] = []
        self.moments: list[tuple[int, int]] = []
        self.transaction = 0
        self.rows = 0

    @initialize()
    def start(self) -> None:
        self.writer = new_writer(self.folder)
        self.run_read: Run = open_run(self.writer.uri)
        self.older: RunWriter | None = None

    def group(self, count: int, together: bool) -> Group:
        """The next group of rows; with an event for each trajectory if `together`."""
        numbers = range(self.rows, self.rows + count)
        group = {"trajectories": trajectories(numbers)}
        if together:
            group["events"] = events(*(f"t{n}" for n in numbers))
        return group

    def acknowledge(self, group: Group, spans: dict[str, tuple[int, int]]) -> None:
        """Note that a commit returned."""
        first, last = spans["trajectories"]
        self.acknowledged += group["trajectories"]["trajectory_id"].to_pylist()
        self.rows += last - first + 1
        self.moments.append((self.writer.last_seq, len(self.acknowledged)))

    @rule(count=st.integers(1, 3), together=st.booleans())
    def commit(self, count: int, together: bool) -> None:
        self.transaction += 1
        group = self.group(count, together)
        self.acknowledge(group, self.writer.commit_many(group, transaction=self.transaction))

    @rule(landed=st.booleans(), then=st.sampled_from(("retry", "restart", "give up")))
    def commit_fails_at_the_first_table(self, landed: bool, then: str) -> None:
        self.fail("trajectories", landed, then)

    @rule(landed=st.booleans(), then=st.sampled_from(("retry", "restart", "give up")))
    def commit_fails_at_the_closing_table(self, landed: bool, then: str) -> None:
        self.fail("events", landed, then)

    def fail(self, failing: str, landed: bool, then: str) -> None:
        """Fail at one table, before or after its commit, and go on in one of three ways."""
        self.transaction += 1
        group = self.group(2, together=True)
        real = TableLog.append

        def append(log: TableLog, *arguments: object) -> None:
            if landed or log.table != failing:
                real(log, *arguments)  # type: ignore[arg-type]
            if log.table == failing:
                raise StoreError("injected")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TableLog, "append", append)
            with pytest.raises(StoreError, match="injected"):
                self.writer.commit_many(group, transaction=self.transaction)
        if then == "restart":
            self.restart()
        if then == "give up" and not (landed and failing == "events"):
            return
        self.acknowledge(group, self.writer.commit_many(group, transaction=self.transaction))

    @rule()
    def restart(self) -> None:
        self.older = self.writer
        self.writer = RunWriter.open(self.older.uri)

    @rule()
    def the_older_writer_tries(self) -> None:
        if self.older is not None:
            with pytest.raises(FencedError):
                self.older.commit("events", events("from the past"))

    @rule(retention=st.sampled_from((timedelta(0), timedelta(days=1))))
    def maintain(self, retention: timedelta) -> None:
        self.writer.maintain(retention=retention)

    @invariant()
    def everything_acknowledged_is_there_once_and_in_order(self) -> None:
        snapshot = self.run_read.snapshot()
        rows = snapshot.trajectories.sort("seq").collect()
        assert rows["trajectory_id"].to_list() == self.acknowledged
        assert rows["committed_at"].is_sorted()
        used = [*rows["seq"], *snapshot.events.select("seq").collect()["seq"]]
        assert len(used) == len(set(used))

    @invariant()
    def earlier_moments_stay(self) -> None:
        for seq, count in self.moments[-1:]:
            assert self.run_read.as_of(seq=seq).trajectories.collect().height == count

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=10,
    stateful_step_count=8,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),  # shrinking takes minutes with real tables
    suppress_health_check=[HealthCheck.too_slow],
)
