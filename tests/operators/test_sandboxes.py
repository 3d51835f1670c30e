"""Pools of real boxes as workers of this process, and what a killed process leaves of them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.swe.file_tree import TreeFile, pack_tar
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError, SettingsError
from rollart_flow.isolation.child import children_of
from rollart_flow.operators.sandbox_client import SandboxClient
from rollart_flow.operators.sandboxes import SandboxWorker
from rollart_flow.resources import Placement, Remote, TypedCluster
from rollart_flow.resources.nodes import node_id
from rollart_flow.resources.placement import Request
from rollart_flow.rows import from_ipc
from rollart_flow.sandbox.agent import cgroup
from rollart_flow.sandbox.base import SandboxSnapshot
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.sandbox.pool_demand import BoxRequest, PoolSettings
from rollart_flow.types import Assignment, AttemptLimits, Sampling, Split, Task
from tests.sandbox.probes import SMALL, Code, Probe

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())

LOADER = b"/run/rollart/loader"
LIMITS = AttemptLimits(max_turns=4, context_tokens=100, trajectory_timeout_s=600.0)


class Ledger:
    """The buffer: keeps rows and events."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._arrived = asyncio.Event()
        self.call = self
        self.record_sandboxes = self.report = self

    def start(self, data: Any) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        if isinstance(data, bytes):
            table: pa.Table = from_ipc(data)
            self.rows += table.to_pylist()
            self._arrived.set()
        return done

    async def until(self, boxes: int) -> None:
        """Wait for the rows of boxes."""
        async with asyncio.timeout(20):
            while len(self.rows) < boxes:
                self._arrived.clear()
                await self._arrived.wait()


class Here:
    """An actor of this loop, behind the interface of Ray's handles."""

    def __init__(self, worker: SandboxWorker) -> None:
        self.worker = worker

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.worker, name)

        class Method:
            @staticmethod
            def remote(*args: Any) -> "asyncio.Future[Any]":
                started: asyncio.Future[Any] = asyncio.ensure_future(method(*args))
                return started

        return Method


class Quarantined:
    """The coordinator: notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.call = self.quarantine = self

    def start(self, task_id: str, why: str) -> None:
        self.told.append(task_id)


@asynccontextmanager
async def pools(
    ledger: Ledger, *domains: str, **settings: Any
) -> AsyncIterator[tuple[SandboxClient, list[SandboxWorker], Quarantined]]:
    """Pools for some domains, and a client of them."""
    workers: list[SandboxWorker] = []

    def spawn(kind: type[Any], placement: Placement, arguments: Mapping[str, Any]) -> Here:
        workers.append(kind(placement, **arguments))
        return Here(workers[-1])

    placed = [
        Placement(f"pool-{number}", "sandbox", "CPU", (Request(name, "CPU"),))
        for number, name in enumerate(domains or ("default",))
    ]
    chosen = PoolSettings(**settings)
    cluster = TypedCluster(
        placed,
        SandboxWorker,
        arguments={"run": "memory", "settings": chosen, "buffer": cast(Remote[Any], ledger)},
        spawn=spawn,
    )
    coordinator = Quarantined()
    client = SandboxClient(
        cluster,
        "here",
        {"probe": Probe(), "code": Code()},
        {"probe": LIMITS, "code": LIMITS},
        cast(Remote[Any], coordinator),
    )
    try:
        yield client, workers, coordinator
    finally:
        await client.close()
        for worker in workers:
            await worker.drain()


def attempt(number: int = 0, domain: str = "probe") -> Assignment:
    return Assignment(
        trajectory_id=f"t{number}",
        group_id="g",
        task=Task(f"task/{number}", domain, "{}"),
        attempt=number,
        env_seed=0,
        sampling=Sampling(),
        split=Split.TRAIN,
    )


async def ended(*pids: int) -> None:
    """Wait for the end of processes."""
    loop = asyncio.get_running_loop()
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        over = asyncio.Event()
        loop.add_reader(pidfd, over.set)
        async with asyncio.timeout(20):
            await over.wait()
        loop.remove_reader(pidfd)
        os.close(pidfd)


@pytest.mark.parametrize("isolated", [True, False])
def test_an_environment_takes_the_box_that_was_made_for_its_attempt(*, isolated: bool) -> None:
    ledger = Ledger()

    async def test() -> None:
        async with pools(ledger) as (client, (worker,), _):
            expected = client.expect(attempt())
            assert expected is not None
            await asyncio.gather(*client._announcing)
            environment = open_environment(
                Probe(), boxes=client.attempt(attempt()), isolated=isolated
            )
            await environment.reset(0, "{}")
            shown, *_ = await environment.step("box.exec('sleep 60 & echo $((6 * 7))').stdout")
            assert shown == repr("42\n")
            await environment.close()
            expected.release()
            await ledger.until(1)
            assert len(worker._pool) == 0

    asyncio.run(test())
    (row,) = ledger.rows
    assert (row["trajectory_id"], row["task_id"], row["domain"]) == ("t0", "task/0", "probe")
    assert (row["pool"], row["variant"], row["node"]) == ("pool-0", "bubblewrap", node_id())
    assert (row["execs"], row["leaked"], row["killed_by"], row["error"]) == (1, 1, "", None)
    assert row["prewarmed"]
    assert row["created_at"] < row["ready_at"] < row["leased_at"] < row["ended_at"]
    assert row["peak_memory_mb"] > 0


def test_an_attempt_that_is_refused_leaves_no_box() -> None:
    ledger = Ledger()

    async def test() -> None:
        async with pools(ledger, idle_s=0.1) as (client, (worker,), _):
            expected = client.expect(attempt())
            assert expected is not None
            await asyncio.gather(*client._announcing)
            await asyncio.sleep(0)
            expected.release()
            await ledger.until(1)
            assert len(worker._pool) == 0

    asyncio.run(test())
    assert [row["trajectory_id"] for row in ledger.rows] == [None]


def test_an_attempt_that_is_over_is_not_announced() -> None:
    ledger = Ledger()

    async def test() -> None:
        async with pools(ledger) as (client, (worker,), _):
            expected = client.expect(attempt())
            assert expected is not None
            expected.release()
            await asyncio.gather(*client._announcing)
            await asyncio.sleep(0)
            assert len(worker._pool) == 0

    asyncio.run(test())
    assert not ledger.rows


def test_a_box_may_begin_with_the_files_that_the_domain_names() -> None:
    ledger = Ledger()
    files = pack_tar({"here.txt": TreeFile(b"of the task")})

    class Prepared(Probe):
        def box(self, task: str) -> SandboxSnapshot:  # type: ignore[override]
            return SandboxSnapshot(SMALL, files)

    async def test() -> None:
        async with pools(ledger) as (client, _, _):
            client._domains = {"probe": Prepared()}
            expected = client.expect(attempt())
            assert expected is not None
            await asyncio.gather(*client._announcing)
            boxes = client.attempt(attempt())
            call = {"call": "open", "box": 1, "spec": asdict(SMALL), "snapshot": True}
            assert "error" not in (await boxes(call, files))[0]
            _, found = await boxes(
                {"call": "read", "box": 1, "path": "here.txt", "max_bytes": 99}, b""
            )
            assert found == b"of the task"
            expected.release()
            await ledger.until(1)

    asyncio.run(test())
    assert ledger.rows[0]["prewarmed"]


@pytest.mark.parametrize(("node", "asked"), [(None, ["open"]), ("another", ["open", "exec"])])
def test_a_process_calls_a_pool_of_its_node_itself_and_its_boxes_end_with_it(
    node: str | None, asked: list[str]
) -> None:
    ledger = Ledger()

    async def test() -> None:
        async with pools(ledger) as (client, (worker,), _):
            client.node = node or client.node
            boxes = client.attempt(attempt())
            noted: list[str] = []

            class Noted:
                release = boxes.release

                async def __call__(self, call: Any, data: bytes) -> tuple[object, bytes]:
                    noted.append(call["call"])
                    return await boxes(call, data)

            environment = open_environment(Probe(), boxes=Noted())
            await environment.reset(0, "{}")
            assert (await environment.step("box.exec('echo 42').stdout"))[0] == repr("42\n")
            assert noted == asked
            with pytest.raises(EnvironmentFailedError, match="SIGKILL"):
                await environment.step("__import__('os').kill(__import__('os').getpid(), 9)")
            if node is None:  # nobody has released the attempt
                await ledger.until(1)
            await environment.close()
            await ledger.until(1)
            assert len(worker._pool) == 0

    asyncio.run(test())
    assert (ledger.rows[0]["execs"], ledger.rows[0]["trajectory_id"]) == (1, "t0")


@pytest.mark.parametrize("isolated", [True, False])
def test_a_timeout_in_the_middle_of_a_command_ends_the_box(*, isolated: bool) -> None:
    ledger = Ledger()

    async def test() -> None:
        async with pools(ledger) as (client, _, _):
            boxes = client.attempt(attempt())
            environment = open_environment(Probe(), boxes=boxes, isolated=isolated, timeout_s=2.0)
            await environment.reset(0, "{}")
            with pytest.raises(EnvironmentTimeoutError):
                await environment.step("box.exec('sleep 60').stdout")
            await environment.close()
            await ledger.until(1)

    asyncio.run(test())
    assert ledger.rows[0]["trajectory_id"] == "t0"


@pytest.mark.parametrize("isolated", [True, False])
def test_a_cancelled_attempt_leaves_no_box_while_it_waits_for_one(
    monkeypatch: pytest.MonkeyPatch, *, isolated: bool
) -> None:
    ledger = Ledger()

    async def test() -> None:
        async with pools(ledger, maximum=1) as (client, (worker,), _):
            first = open_environment(Probe(), boxes=client.attempt(attempt()), isolated=isolated)
            await first.reset(0, "{}")
            boxes = client.attempt(attempt(1))
            second = open_environment(Probe(), boxes=boxes, isolated=isolated)
            asked, ask = asyncio.Event(), worker._pool._stock.ask

            def noted(request: BoxRequest) -> None:
                ask(request)
                asked.set()

            monkeypatch.setattr(worker._pool._stock, "ask", noted)
            waits = asyncio.ensure_future(second.reset(0, "{}"))
            await asyncio.wait_for(asked.wait(), 20)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            await second.close()
            await asyncio.sleep(0)
            await first.close()
            await ledger.until(1)
            assert len(worker._pool) == 0

    asyncio.run(test())
    assert [row["trajectory_id"] for row in ledger.rows] == ["t0"]


def test_a_box_whose_first_process_is_killed_fails_its_attempt_only() -> None:
    ledger = Ledger()

    async def test() -> None:
        async with pools(ledger) as (client, _, _):
            environments = [
                open_environment(Probe(), boxes=client.attempt(attempt(number)), isolated=False)
                for number in range(2)
            ]
            for environment in environments:
                await environment.reset(0, "{}")
            victim, _ = agents_of(os.getpid())
            os.kill(victim, signal.SIGKILL)
            await ended(victim)
            said = [(await each.step("box.exec('true').ok"))[0] for each in environments]
            assert sorted("SandboxError" in str(each) for each in said) == [False, True]
            for environment in environments:
                await environment.close()
            await ledger.until(2)

    asyncio.run(test())
    assert sorted(row["killed_by"] for row in ledger.rows) == ["", "failure"]


def test_a_task_whose_boxes_fail_is_reported_once() -> None:
    async def test() -> None:
        async with pools(Ledger(), failures=2, start_tries=1, start_s=0.0) as (client, _, told):
            for _ in range(4):
                boxes = client.attempt(attempt())
                environment = open_environment(Probe(), boxes=boxes, isolated=False)
                with pytest.raises(EnvironmentFailedError):
                    await environment.reset(0, "{}")
                await environment.close()
            assert told.told == ["task/0"]

    asyncio.run(test())


def test_attempts_go_to_the_pool_of_their_domain_with_the_fewest() -> None:
    async def test() -> None:
        async with pools(Ledger(), "code", "probe", "probe") as (client, _, _):
            of_probe = [client.attempt(attempt(number)).pool.name for number in range(4)]
            assert sorted(of_probe) == ["pool-1", "pool-1", "pool-2", "pool-2"]
            assert client.attempt(attempt(9, "code")).pool.name == "pool-0"

    asyncio.run(test())


def test_a_worker_says_what_its_node_lacks() -> None:
    with pytest.raises(SettingsError, match=r"rollout\.sandbox='nothing'|'nothing'"):
        SandboxWorker(
            Placement("pool", "sandbox", "CPU"),
            run="memory",
            settings=PoolSettings(variant="nothing"),
            buffer=cast(Remote[Any], Ledger()),
        )


def test_what_a_process_of_this_node_holds_ends_with_it() -> None:
    ledger = Ledger()
    living = "from rollart_flow.sandbox.owner import owner_label; "
    living += "print(owner_label(), flush=True); input()"

    async def test(other: subprocess.Popen[bytes]) -> None:
        assert other.stdout is not None
        label = other.stdout.readline().decode().strip()
        async with pools(ledger, holder_s=1e6) as (client, (worker,), _):
            client.holder = "other"
            await worker.renew("other", node_id(), label)
            environment = open_environment(Probe(), boxes=client.attempt(attempt()), isolated=False)
            await environment.reset(0, "{}")
            other.kill()
            await ledger.until(1)
            await environment.close()

    command = [sys.executable, "-c", living]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        asyncio.run(test(other))
    assert ledger.rows[0]["killed_by"] == "lease"


HOLDER = """
import asyncio
from rollart_flow.sandbox.registry import create_sandbox
from tests.sandbox.probes import SMALL

async def main():
    boxes = [await create_sandbox(SMALL) for _ in range(3)]
    for box in boxes:
        await box.exec("setsid sleep 600 & setsid sh -c 'while :; do sleep 1; done' & :")
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


def test_nothing_is_left_of_the_boxes_of_a_killed_process() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        made = agents_of(holder.pid)
        assert len(made) == 3
        inside = [pid for pid in descendants(holder.pid) if b"sleep" in arguments(pid)]
        assert len(inside) >= 3
        holder.kill()

    asyncio.run(ended(*made, *inside))
    cgroup.sweep_groups()
    assert not groups_of(holder.pid)


def descendants(pid: int) -> list[int]:
    """Processes below one, the older before the younger."""
    found = children_of(pid)
    for child in found:
        found += children_of(child)
    return found


def arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def agents_of(pid: int) -> list[int]:
    """First processes of the boxes that a process holds, the oldest first."""
    return [each for each in sorted(descendants(pid)) if arguments(each).startswith(LOADER)]


def groups_of(pid: int) -> list[Path]:
    """Control groups of the boxes of a process."""
    parents = {*(cgroup._parents(cgroup.MOUNT, Path("/proc/self/cgroup")) or {}).values()}
    return [path for parent in parents for path in parent.glob(f"rollart-{pid}-*")]
