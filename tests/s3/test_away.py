"""A server that is away: what a run asks of it is repeated, has its effect once, and is named."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from rollart_flow.blocked import blocked
from rollart_flow.errors import StoreAwayError
from rollart_flow.store import RunWriter, open_run
from rollart_flow.store.away import LIMIT_VARIABLE
from rollart_flow.trainers.checkpoint.retention import retain_checkpoints
from rollart_flow.weights.folder_store import local_path, made
from rollart_flow.weights.local import LocalWeightStore
from tests.builders import batches, events, trajectories
from tests.chaos.faults.proxy import Action, Proxy, Request, always
from tests.chaos.matrix import wait_until
from tests.runs import info, seqs
from tests.s3.server import S3Server
from tests.weights.conformance import tensors_of


@pytest.fixture
def proxy(server: S3Server, remote: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy through which this process reaches the server."""
    with Proxy(server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        yield proxy


@pytest.fixture
def writer(proxy: Proxy, remote: str) -> RunWriter:
    """A run with a batch, two versions and two checkpoints."""
    writer = RunWriter.create(f"{remote}/a", info())
    writer.commit("trajectories", trajectories(range(2)))
    writer.commit("batches", batches(1, [1, 0]))
    for number in (1, 2):
        LocalWeightStore(f"{writer.uri}/weights").publish(number, tensors_of(number))
        checkpoint(writer, number)
    return writer


def checkpoint(writer: RunWriter, number: int) -> None:
    with made(f"{writer.uri}/checkpoints/{number:06d}") as folder:
        folder.mkdir(parents=True)
        (folder / "state").write_text("state")


def commit(writer: RunWriter) -> None:
    writer.commit("events", events("one"))


def maintain(writer: RunWriter) -> None:
    writer.maintain(retention=timedelta(0))


def read_batch(writer: RunWriter) -> None:
    assert open_run(writer.uri).batch(1).num_rows == 2


def publish(writer: RunWriter) -> None:
    LocalWeightStore(f"{writer.uri}/weights").publish(3, tensors_of(3))


def pull(writer: RunWriter) -> None:
    LocalWeightStore(f"{writer.uri}/weights").read(2)


def save(writer: RunWriter) -> None:
    checkpoint(writer, 3)


def load(writer: RunWriter) -> None:
    assert Path(local_path(f"{writer.uri}/checkpoints/000002"), "state").read_text() == "state"


def remove(writer: RunWriter) -> None:
    assert retain_checkpoints(f"{writer.uri}/checkpoints", 1, 0) == {2}


def take_over(writer: RunWriter) -> None:
    RunWriter.open(writer.uri).commit("events", events("two"))


def close(writer: RunWriter) -> None:
    writer.close()


CALLS = (commit, maintain, read_batch, publish, pull, save, load, remove, take_over, close)


@pytest.mark.parametrize("fault", [Action.RESET, Action.BUSY], ids=str)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_call_waits_for_the_server_under_a_name(
    call: Callable[[RunWriter], None], fault: Action, writer: RunWriter, proxy: Proxy
) -> None:
    with ThreadPoolExecutor(1) as thread, proxy.making(always(fault)):
        done = thread.submit(call, writer)
        wait_until(lambda: done.done() or any("failed" in name for name, _ in blocked()), "a name")
        proxy.mend()
        done.result()
    assert blocked() == []


def test_a_commit_whose_answers_are_lost_takes_place_once(writer: RunWriter, proxy: Proxy) -> None:
    lost: list[str] = []

    def lose(request: Request) -> Action:
        if "PUT" not in request.method or request.path in lost:
            return Action.PASS
        lost.append(request.path)
        return Action.LOSE

    with proxy.making(lose):
        commit(writer)
        writer.commit("trajectories", trajectories(range(2, 4)))
    assert [path for path in lost if "_delta_log" in path]
    run = open_run(writer.uri)
    assert seqs(run.trajectories) == [1, 2, 6, 7]
    assert run.events.collect().height == 1


def test_after_the_limit_the_error_says_what_was_asked_and_how_often(
    writer: RunWriter, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "0")
    with (
        proxy.making(always(Action.RESET)),
        pytest.raises(
            StoreAwayError, match=r"cannot write s3://.* does not answer .*\(attempts: 1 in 0 s\)$"
        ),
    ):
        commit(writer)
    monkeypatch.delenv(LIMIT_VARIABLE)
    commit(writer)
    assert open_run(writer.uri).events.collect().height == 1
