"""Weights on their way to an engine: read ahead where possible, else when they are asked for."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine
from functools import wraps
from pathlib import Path

import pytest
import torch

from rollart_flow.control.protocols import PullStats
from rollart_flow.engines.weight_prefetcher import WeightPrefetcher
from rollart_flow.errors import VersionMissingError, WeightsError, WeightStoreAwayError
from rollart_flow.retries import RetryPolicy
from rollart_flow.weights import LocalWeightStore
from rollart_flow.weights.following import Following
from tests.weights.conformance import assert_is_version, tensors_of

SLOW_S = 0.3
"""Time that a slow read takes."""


def in_a_loop(test: Callable[[Path], Coroutine[None, None, None]]) -> Callable[[Path], None]:
    """Run a test in a loop of its own, on the real clock: stores are read in threads."""

    @wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(asyncio.wait_for(test(tmp_path), 60))

    return run


class GatedStore(LocalWeightStore):
    """A real store whose reads are counted, and begin when they may."""

    def __init__(self, folder: Path, versions: Collection[int]) -> None:
        super().__init__(folder)
        for version in versions:
            self.publish(version, tensors_of(version))
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.read_versions: list[int] = []
        self.last: weakref.ref[torch.Tensor] | None = None

    def read(self, version: int) -> dict[str, torch.Tensor]:
        self.read_versions.append(version)
        self.began.set()
        assert self.gate.wait(60)
        tensors = super().read(version)
        self.last = weakref.ref(tensors["model.scale"])
        return tensors


def store_of(folder: Path, *versions: int) -> GatedStore:
    return GatedStore(folder / "weights", versions)


async def taken(pulls: WeightPrefetcher, version: int) -> PullStats:
    tensors, pull = await pulls.take(version)
    assert_is_version(dict(tensors), version)
    return pull


@in_a_loop
async def test_what_was_read_ahead_is_not_waited_for(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1)
    store.gate.clear()
    asyncio.get_running_loop().call_later(SLOW_S, store.gate.set)
    pulls = WeightPrefetcher(store)
    pulls.begin(1)
    pulls.begin(1)
    assert pulls._ahead is not None
    await pulls._ahead.reading
    pull = await taken(pulls, 1)
    assert store.read_versions == [1]
    assert pull.exposed_s < SLOW_S / 2 < pull.pull_s


@in_a_loop
async def test_what_is_left_of_a_read_is_waited_for(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1)
    store.gate.clear()
    pulls = WeightPrefetcher(store)
    pulls.begin(1)
    taking = asyncio.create_task(taken(pulls, 1))
    await asyncio.sleep(0)
    store.gate.set()
    pull = await taking
    assert store.read_versions == [1]
    assert pull.exposed_s > 0


@in_a_loop
async def test_what_was_not_read_ahead_is_read_when_asked_for(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1)
    pull = await taken(WeightPrefetcher(store), 1)
    assert 0 < pull.pull_s <= pull.exposed_s


@in_a_loop
async def test_a_read_ahead_that_failed_is_made_again(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1, 2)
    file = tmp_path / "weights" / "v000002" / "model.safetensors"
    pulls = WeightPrefetcher(store)
    for _ in range(2):
        file.write_bytes(b"damaged")
        pulls.begin(2)
        assert pulls._ahead is not None
        await asyncio.wait((pulls._ahead.reading,))
    store.publish(2, tensors_of(2))
    await taken(pulls, 2)
    assert store.read_versions.count(2) > 2, "begun twice, and publishing looks at it too"


@in_a_loop
async def test_a_version_that_is_still_on_its_way_is_waited_for(tmp_path: Path) -> None:
    """An engine that lost its process may be asked for a version before it can be read."""
    store = store_of(tmp_path, 1)
    pulls = WeightPrefetcher(store, RetryPolicy(limit_s=30, backoff_s=0.05, backoff_cap_s=0.05))
    taking = asyncio.create_task(taken(pulls, 2))
    while len(store.read_versions) < 3:
        assert not taking.done()
        await asyncio.sleep(0.01)
    store.publish(2, tensors_of(2))
    await taking
    (retried,) = pulls.retried()
    assert "no weights of version 2" in retried.error


@in_a_loop
async def test_a_version_that_never_comes_is_named(tmp_path: Path) -> None:
    pulls = WeightPrefetcher(store_of(tmp_path, 1), RetryPolicy(limit_s=0.1, backoff_s=0.05))
    with pytest.raises(VersionMissingError, match=r"no weights of version 3 .*attempts: \d"):
        await pulls.take(3)


@in_a_loop
async def test_a_version_that_is_not_published_yet_is_read_when_it_is(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1)
    pulls = WeightPrefetcher(store)
    pulls.begin(2)
    await asyncio.to_thread(store.publish, 2, tensors_of(2))
    await taken(pulls, 2)
    assert store.read_versions.count(2) < 2, "it is not read again"


@in_a_loop
async def test_a_read_of_a_version_that_is_never_published_ends_with_the_next_one(
    tmp_path: Path,
) -> None:
    store = store_of(tmp_path, 1)
    pulls = WeightPrefetcher(store)
    pulls.begin(2)
    pulls.begin(3)
    store.publish(3, tensors_of(3))
    await taken(pulls, 3)
    assert store.read_versions == [3]


def test_a_loop_that_ends_does_not_wait_for_a_version_that_is_never_published(
    tmp_path: Path,
) -> None:
    async def run() -> asyncio.Task[tuple[dict[str, torch.Tensor], float]]:
        pulls = WeightPrefetcher(LocalWeightStore(tmp_path))
        pulls.begin(2)
        assert pulls._ahead is not None
        await asyncio.sleep(0)
        return pulls._ahead.reading

    assert asyncio.run(run()).cancelled()


@in_a_loop
async def test_at_most_one_version_is_held_ahead_and_it_is_the_newest(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1, 2)
    store.gate.clear()
    pulls = WeightPrefetcher(store)
    for version in (1, 2, 1):
        pulls.begin(version)
    assert await asyncio.to_thread(store.began.wait, 60)
    assert store.read_versions == [1], "one after the other"
    store.gate.set()
    assert pulls._ahead is not None
    await pulls._ahead.reading
    assert store.read_versions == [1, 2]
    await taken(pulls, 1)
    await taken(pulls, 2)
    assert store.read_versions == [1, 2, 1], "a version before it was asked for, and it is kept"
    await asyncio.get_running_loop().shutdown_default_executor()
    assert store.last is not None
    assert store.last() is None, "what was taken is held no more"


class FailingStore(LocalWeightStore):
    """A store whose storage fails for some reads."""

    def __init__(self, folder: Path, failures: int) -> None:
        super().__init__(folder)
        self.failures = failures

    def read(self, version: int) -> dict[str, torch.Tensor]:
        if self.failures:
            self.failures -= 1
            raise WeightStoreAwayError("the disk does not answer")
        return super().read(version)


@in_a_loop
async def test_a_read_is_repeated_while_the_storage_fails(tmp_path: Path) -> None:
    store = FailingStore(tmp_path, failures=2)
    store.publish(1, tensors_of(1))
    pulls = WeightPrefetcher(store, RetryPolicy(backoff_s=0.001))
    await taken(pulls, 1)
    (retried,) = pulls.retried()
    assert (retried.what, retried.failures) == ("read version 1", 2)
    assert pulls.retried() == ()


@in_a_loop
async def test_a_read_that_cannot_succeed_is_not_repeated(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1)
    (tmp_path / "weights" / "v000001" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(WeightsError, match="weights of version 1 cannot be read"):
        await WeightPrefetcher(store).take(1)
    assert store.read_versions == [1]


class AwayStore(GatedStore):
    """A store that no version can be read of ahead."""

    def follow(self, version: int, following: Following) -> dict[str, torch.Tensor]:
        raise WeightStoreAwayError(f"weights of version {version} cannot be read")


@in_a_loop
async def test_a_read_ahead_that_failed_and_is_never_asked_for_prints_nothing(
    tmp_path: Path,
) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    pulls = WeightPrefetcher(AwayStore(tmp_path / "weights", ()))
    pulls.begin(1)
    reading = {each for each in asyncio.all_tasks() if "_follow" in str(each.get_coro())}
    assert len(reading) == 1
    await asyncio.wait(reading)
    del pulls, reading
    gc.collect()
    assert told == []
