"""The tables of a run in S3: written, read, looked at as of earlier, by several at once."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import polars as pl
import pytest

from rollart_flow.errors import FencedError, RunExistsError, RunNotFoundError, SettingsError
from rollart_flow.store import RunStatus, RunWriter, list_runs, new_run_uri, open_run, resolve
from tests.builders import batches, events, step_row, trajectories
from tests.runs import ids, info, seqs


@pytest.fixture
def writer(remote: str) -> Iterator[RunWriter]:
    """The writer of a new run."""
    with RunWriter.create(f"{remote}/a", info()) as opened:
        yield opened


def test_what_is_committed_is_read(writer: RunWriter) -> None:
    writer.commit("trajectories", trajectories(range(4)))
    writer.commit_many({"batches": batches(1, [0, 2]), "steps": step_row(1)}, transaction=1)
    writer.commit("trajectories", trajectories(range(4, 6)))
    run = open_run(writer.uri)
    assert ids(run.trajectories) == [f"t{n}" for n in range(6)]
    assert run.batch(step=1)["trajectory_id"].to_pylist() == ["t0", "t2"]
    assert ids(run.as_of(step=1).trajectories) == [f"t{n}" for n in range(4)]
    assert run.sql("SELECT count(*) AS n FROM trajectories").item() == 6
    again = writer.commit_many({"batches": batches(1, [0, 2]), "steps": step_row(1)}, transaction=1)
    assert again["steps"] == (7, 7)


def test_a_run_is_found_and_its_end_is_recorded(remote: str) -> None:
    assert list_runs(remote) == []
    for name in ("first", "second"):
        RunWriter.create(f"{remote}/{name}", info(name)).close()
    assert [uri for uri, _ in list_runs(remote)] == [f"{remote}/first", f"{remote}/second"]
    assert open_run("second", store=remote).status is RunStatus.FINISHED
    assert resolve(f"{remote}/first/") == f"{remote}/first"
    with pytest.raises(RunNotFoundError, match="did you mean first"):
        resolve("frist", store=remote)
    with pytest.raises(RunExistsError, match="choose another name"):
        RunWriter.create(f"{remote}/first", info("first"))


def test_a_prefix_may_have_blanks_and_letters_that_urls_encode(remote: str) -> None:
    uri = f"{remote} a%b{{c}}ü/run 1"
    with RunWriter.create(uri, info("run 1")) as writer:
        writer.commit("trajectories", trajectories(range(2)))
        assert ids(open_run(uri).trajectories) == ["t0", "t1"]
    for name in ("a#b", "a?b"):
        with pytest.raises(SettingsError, match="must end there, without"):
            new_run_uri(name, remote)


def test_of_two_writers_the_later_one_goes_on(writer: RunWriter) -> None:
    writer.commit("events", events("one"))
    with RunWriter.open(writer.uri) as later:
        later.commit("events", events("two"))
        with pytest.raises(FencedError, match="another writer has taken over"):
            writer.commit("events", events("lost"))
    subjects = open_run(writer.uri).events.sort("seq").select("subject").collect()
    assert subjects["subject"].to_list() == ["one", "two"]


def test_two_writers_of_one_table_at_once_lose_nothing(writer: RunWriter) -> None:
    """Maintenance rewrites the very table that is committed to; both put the same log keys."""
    stop = threading.Event()

    def maintain() -> None:
        while not stop.is_set():
            writer.maintain(retention=timedelta(0))

    thread = threading.Thread(target=maintain)
    thread.start()
    for number in range(24):
        writer.commit("trajectories", trajectories(range(number, number + 1)))
    stop.set()
    thread.join()
    writer.maintain(retention=timedelta(0))
    assert seqs(open_run(writer.uri).trajectories) == list(range(1, 25))


def test_a_reader_watches_a_run_grow(writer: RunWriter) -> None:
    run = open_run(writer.uri)
    seen = []
    for number in range(3):
        writer.commit("trajectories", trajectories(range(number, number + 1)))
        seen.append(run.trajectories.select(pl.len()).collect().item())
    assert seen == [1, 2, 3]
