"""The Mooncake store over its real servers: whole versions or none, whatever ends or fills up."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from rollart_flow.errors import WeightsError
from rollart_flow.weights import WeightStore
from rollart_flow.weights.mooncake.client import MooncakeClient
from rollart_flow.weights.mooncake.index import IndexLog
from rollart_flow.weights.mooncake.servers import LEAST_SEGMENT_BYTES, MooncakeServers
from rollart_flow.weights.mooncake.store import MooncakeWeightStore
from tests.extras import with_mooncake
from tests.weights.conformance import assert_is_version, tensors_of
from tests.weights.following import BUCKET, FollowingConformance

pytestmark = with_mooncake
T = TypeVar("T")
ROOT = Path(__file__).parents[3]


@dataclass
class Opened:
    """Servers of this test run, and the stores that a test opens."""

    servers: MooncakeServers
    stores: ExitStack = field(default_factory=ExitStack)

    def store(self, run: str, **settings: Any) -> MooncakeWeightStore:
        """As another process would open it: with a connection of its own."""
        store = MooncakeWeightStore(self.servers.address, run, **settings)
        self.stores.callback(store.close)
        return store

    def beside(self, other: MooncakeWeightStore, run: str) -> MooncakeWeightStore:
        """Over the connection of another one, since opening one takes a second."""
        other.versions()
        assert other._connected is not None
        store = MooncakeWeightStore(self.servers.address, run)
        store._connected = other._connected[0], IndexLog(other._connected[0], run)
        return store


@pytest.fixture(scope="module")
def shared() -> Iterator[MooncakeServers]:
    servers = MooncakeServers(LEAST_SEGMENT_BYTES)
    yield servers
    assert servers.starts == 1
    servers.close()


@pytest.fixture
def opened(shared: MooncakeServers) -> Iterator[Opened]:
    here = Opened(shared)
    with here.stores:
        yield here


@pytest.fixture
def own() -> Iterator[Opened]:
    """Servers of this test alone, that it may kill; what was read is soon removable."""
    servers = MooncakeServers(LEAST_SEGMENT_BYTES, lease_s=3.0)
    here = Opened(servers)
    with here.stores:
        yield here
    servers.close()


class TestMooncakeWeightStore(FollowingConformance):
    """The promises of every store."""

    @pytest.fixture(autouse=True)
    def connect(self, opened: Opened) -> None:
        self.opened = opened

    def make_store(self, place: Path) -> MooncakeWeightStore:
        return self.opened.store(place.name, bucket_bytes=BUCKET)

    def on_bucket(self, monkeypatch: pytest.MonkeyPatch, call: Callable[[int], None]) -> None:
        put = MooncakeClient.put_part

        def put_and_call(client: MooncakeClient, key: str, part: torch.Tensor) -> None:
            put(client, key, part)
            call(int(key.rpartition("/")[2]))

        monkeypatch.setattr(MooncakeClient, "put_part", put_and_call)

    def damage(self, store: WeightStore, version: int) -> None:
        assert isinstance(store, MooncakeWeightStore)
        client, log = store._connected or pytest.fail("it is connected")
        key = f"{store._run}/{log.newest().leaving[-1]}/00000"
        client._store.remove(key, True)
        client.put(key, b"x" * BUCKET)


def test_one_run_does_not_see_the_versions_of_another(opened: Opened) -> None:
    opened.store("one").publish(1, tensors_of(1))
    assert opened.store("two").versions() == ()


def test_tensors_larger_than_a_bucket_are_cut_and_joined(opened: Opened) -> None:
    torch.manual_seed(0)
    published = {"big": torch.randn(1000, 77), "odd": torch.ones(3, dtype=torch.int8)}
    published |= {"after": torch.randn(5, 5).to(torch.bfloat16), "none": torch.zeros(0, 4)}
    opened.store("cut", bucket_bytes=64 * 100).publish(1, published)
    read = opened.store("cut").read(1)  # whose own buckets are larger
    assert all(torch.equal(read[name], published[name]) for name in published)


def test_memory_is_read_into_again_once_no_tensor_of_it_is_left(opened: Opened) -> None:
    """Fresh memory costs more than the transfer."""
    publisher, reader = opened.store("memory"), opened.store("memory")
    for version in (1, 2, 3):
        publisher.publish(version, tensors_of(version))
    first = reader.read(1)
    place = first["model.scale"].data_ptr()
    second = reader.read(2)
    assert_is_version(first, 1)
    assert_is_version(second, 2)
    assert second["model.scale"].data_ptr() != place
    place, view = second["model.scale"].data_ptr(), second["model.embed_tokens.weight"][3]
    del first, second
    third = reader.read(3)
    assert third["model.scale"].data_ptr() != place, "a view of it is left"
    assert (view == 2).all()
    place = third["model.scale"].data_ptr()
    del third, view
    assert reader.read(1)["model.scale"].data_ptr() == place


def test_versions_after_a_hundred_changes_are_found_by_who_opens_the_store_late(
    opened: Opened,
) -> None:
    store = opened.store("long")
    for version in range(40):
        store.publish(version, {"a": torch.full((2,), float(version))})
        store.retain(2)
    late = opened.store("long")
    assert late.versions() == (38, 39)
    assert late.read(39)["a"].tolist() == [39.0, 39.0]


DAMAGES = ("a bucket is lost", "a bucket is another's", "the manifest is lost")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_version_is_refused_and_can_be_published_again(damage: str, own: Opened) -> None:
    store = own.store("damaged", bucket_bytes=1024)
    store.publish(1, tensors_of(1))
    client, log = store._connected or pytest.fail("it is connected")
    name = log.newest().published[1]
    key = f"damaged/{name}/{'manifest' if 'manifest' in damage else '00001'}"
    client._store.remove(key, True)
    if "another" in damage:
        client.put(key, b"x" * 1024)
    with pytest.raises(WeightsError, match="version 1") as caught:
        store.read(1)
    assert "\n" not in str(caught.value)
    if "another" not in damage:
        store.publish(1, tensors_of(1))
        assert_is_version(store.read(1), 1)


def test_a_full_segment_refuses_a_version_and_keeps_the_others(own: Opened) -> None:
    store = own.store("full", bucket_bytes=16 << 20)
    tensors = {"a": torch.zeros(100 << 20, dtype=torch.uint8)}
    for version in (1, 2):
        store.publish(version, tensors)
    for _ in range(2):
        with pytest.raises(WeightsError, match="keep fewer versions") as caught:
            store.publish(3, tensors)
        assert "\n" not in str(caught.value)
    assert own.store("full").versions() == (1, 2)
    assert store.read(1)["a"].numel() == 100 << 20
    store.retain(1)  # version 1 was read a moment ago and may still be
    small = {"a": torch.zeros(8)}
    store.publish(4, small)
    assert store.versions() == (2, 4)


def test_memory_of_collected_versions_is_used_again(own: Opened) -> None:
    """Four versions of 96 MB through 256 MB, some of them read."""
    store, reader = (own.store("again", bucket_bytes=8 << 20) for _ in range(2))
    for version in range(4):
        tensors = {"a": torch.full((96 << 20,), version, dtype=torch.uint8)}
        until_done(partial(store.publish, version, tensors))
        if version % 2 == 0:
            assert (reader.read(version)["a"] == version).all()
        store.retain(1)
    assert store.versions() == (3,)


def test_a_killed_master_is_followed_by_another_and_what_was_read_stays(own: Opened) -> None:
    store, reader = own.store("killed"), own.store("killed")
    store.publish(1, tensors_of(1))
    read = reader.read(1)
    restarted = own.servers.restarted
    os.kill(own.servers.pids[0], signal.SIGKILL)
    assert restarted.wait(60)
    assert own.servers.lost
    assert_is_version(read, 1)
    with pytest.raises(WeightsError):
        reader.read(1)
    store.publish(2, tensors_of(2))
    store.publish(1, tensors_of(1))
    assert reader.versions() == (1, 2)
    for version in (1, 2):
        assert_is_version(reader.read(version), version)


def test_where_both_servers_have_died_twice_everything_is_refused_in_one_line(own: Opened) -> None:
    store = own.store("dead")
    store.publish(1, tensors_of(1))
    restarted = own.servers.restarted
    os.kill(own.servers.pids[1], signal.SIGKILL)
    assert restarted.wait(60)
    os.kill(own.servers.pids[0], signal.SIGKILL)
    own.servers.ended.wait(60)
    assert own.servers.pids == ()
    for ask in (lambda: store.read(1), lambda: store.publish(2, tensors_of(2)), store.versions):
        with pytest.raises(WeightsError, match="is its master up") as caught:
            ask()
        assert "\n" not in str(caught.value)


PUBLISHERS = """
import os, sys
from itertools import count
import torch
from rollart_flow.weights.mooncake.client import MooncakeClient
from rollart_flow.weights.mooncake.store import MooncakeWeightStore
from tests.weights.conformance import tensors_of

def dies_at_call(function):
    def call(*arguments, **keywords):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
        return function(*arguments, **keywords)
    return call

for name in ("put_part", "put", "remove"):
    setattr(MooncakeClient, name, dies_at_call(getattr(MooncakeClient, name)))
for left in count(1):
    run = f"moment{left}"
    child = os.fork()
    if child == 0:
        store = MooncakeWeightStore(sys.argv[1], run, bucket_bytes=4096)
        store.publish(2, tensors_of(2))
        store.retain(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(os.waitstatus_to_exitcode(status))
    if status == 0:
        break
"""


def test_a_publisher_killed_at_any_moment_leaves_whole_versions(own: Opened) -> None:
    """One process for each write is killed (SIGKILL) before it, until one survives."""
    first = own.store("moment0")
    stores = [own.beside(first, f"moment{moment}") for moment in range(1, 16)]
    for store in stores:
        store.publish(1, tensors_of(1))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", PUBLISHERS, own.servers.address]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    codes = [int(line) for line in done.stdout.splitlines()]
    assert codes == [-signal.SIGKILL] * (len(codes) - 1) + [0]
    found = []
    for store in stores[: len(codes)]:
        found.append(store.versions())
        for version in store.versions():
            assert_is_version(store.read(version), version)
        store.publish(2, tensors_of(2))
        store.publish(3, tensors_of(3))
        assert store.versions() == (*found[-1][:1], *((2,) if found[-1] != (2,) else ()), 3)
    assert sorted(set(found), key=found.index) == [(1,), (1, 2), (2,)]


MID_PUT = """
import sys
import torch
from rollart_flow.weights.mooncake.store import MooncakeWeightStore

store = MooncakeWeightStore(sys.argv[1], "torn", bucket_bytes=8 << 20)
tensors = {"a": torch.full((100 << 20,), 2, dtype=torch.uint8)}
print("publishing", flush=True)
store.publish(2, tensors)
"""


def test_a_publisher_killed_in_the_midst_of_a_put_is_followed_by_another(own: Opened) -> None:
    store = own.store("torn", bucket_bytes=8 << 20)
    store.publish(1, tensors_of(1))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", MID_PUT, own.servers.address]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as publisher:
        assert publisher.stdout is not None
        assert publisher.stdout.readline() == b"publishing\n"
        while not (store._connected or pytest.fail("connected"))[1].newest().leaving:
            assert publisher.poll() is None
        publisher.kill()
    assert store.versions() == (1,)
    tensors = {"a": torch.full((100 << 20,), 2, dtype=torch.uint8)}
    store.publish(2, tensors)
    assert (own.store("torn").read(2)["a"] == 2).all()


def test_a_reader_slower_than_its_lease_gets_all_of_it_or_an_error() -> None:
    """What takes longer than its lease is refused by the store; whoever asks again goes on."""
    servers = MooncakeServers(LEAST_SEGMENT_BYTES, lease_s=0.03)
    own = Opened(servers)
    with own.stores:
        store, reader = own.store("slow"), own.store("slow")
        for version in range(4):
            tensors = {"a": torch.full((60 << 20,), version, dtype=torch.uint8)}
            until_done(partial(store.publish, version, tensors))
            with suppress(WeightsError):
                assert (reader.read(version)["a"] == version).all()
            until_done(partial(store.retain, 1))
        assert until_done(store.versions) == (3,)
    servers.close()


def until_done(ask: Callable[[], T]) -> T:
    """The answer, asked again where something was read too slowly, or is still leased."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(WeightsError):
            return ask()
    return ask()
