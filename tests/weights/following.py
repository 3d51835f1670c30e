"""What every store promises to readers that follow a version while it is published.

A store's test subclasses `FollowingConformance`, which has the tests of all stores too, and says
how its buckets are written and damaged. Versions have several buckets of `BUCKET` bytes.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from rollart_flow.errors import WeightsError
from rollart_flow.weights import WeightStore
from rollart_flow.weights.following import Following, T
from tests.weights.conformance import WeightStoreConformance, assert_is_version, tensors_of

BUCKET = 4096
SIZE = 1000
"""Rows of the largest tensor: a version has eight buckets."""
WITHIN_S = 30


class Watched(Following):
    """A reader that says how many parts it has found, and that it has begun to wait."""

    def __init__(self, patience_s: float = WITHIN_S) -> None:
        super().__init__(patience_s)
        self.found = threading.Semaphore(0)
        self.waits = threading.Event()

    def wait_for(self, look: Callable[[], T | None], part: str) -> T:
        def watched() -> T | None:
            seen = look()
            if seen is None:
                self.waits.set()
            return seen

        found = super().wait_for(watched, part)
        self.found.release()
        return found


class FollowingConformance(WeightStoreConformance):
    """The tests."""

    @abstractmethod
    def on_bucket(self, monkeypatch: pytest.MonkeyPatch, call: Callable[[int], None]) -> None:
        """Have publishers call this after each bucket, with its number, before the next one."""

    @abstractmethod
    def damage(self, store: WeightStore, version: int) -> None:
        """Change the first bucket of a version that is being published."""

    @pytest.fixture
    def reader(self, tmp_path: Path) -> WeightStore:
        """The store as another process opens it."""
        return self.make_store(tmp_path)

    @contextmanager
    def following(
        self, store: WeightStore, version: int, following: Following
    ) -> Iterator[Future[dict[str, torch.Tensor]]]:
        with ThreadPoolExecutor(1) as thread:
            yield thread.submit(store.follow, version, following)

    def test_buckets_are_read_while_later_ones_are_written(
        self, store: WeightStore, reader: WeightStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watched, overlapped = Watched(), list[int]()

        def read_meanwhile(number: int) -> None:
            if number == 3:
                for _ in range(4):  # the version, its manifest, and two buckets
                    assert watched.found.acquire(timeout=WITHIN_S)
                overlapped.append(number)

        self.on_bucket(monkeypatch, read_meanwhile)
        with self.following(reader, 3, watched) as read:
            assert watched.waits.wait(WITHIN_S)
            store.publish(3, tensors_of(3, size=SIZE))
            assert_is_version(read.result(), 3)
        assert overlapped == [3]
        assert watched.waited_s > 0

    def test_readers_wait_for_the_end_of_a_version(
        self, store: WeightStore, reader: WeightStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done = list[bool]()
        with self.following(reader, 3, Following()) as read:
            self.on_bucket(monkeypatch, lambda number: done.append(read.done()))
            store.publish(3, tensors_of(3, size=SIZE))
            read.result()
        assert len(done) > 4
        assert not any(done)

    def test_two_readers_follow_one_version(
        self, store: WeightStore, reader: WeightStore, tmp_path: Path
    ) -> None:
        other = self.make_store(tmp_path)
        with (
            self.following(reader, 3, Following()) as first,
            self.following(other, 3, Following()) as second,
        ):
            store.publish(3, tensors_of(3, size=SIZE))
            assert_is_version(first.result(), 3)
            assert_is_version(second.result(), 3)

    def test_a_reader_that_begins_late_reads_the_version(
        self, store: WeightStore, reader: WeightStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ThreadPoolExecutor(1) as thread:
            begun = list[Future[dict[str, torch.Tensor]]]()

            def begin(number: int) -> None:
                if number == 5:
                    begun.append(thread.submit(reader.follow, 3, Following()))

            self.on_bucket(monkeypatch, begin)
            store.publish(3, tensors_of(3, size=SIZE))
            assert_is_version(begun[0].result(), 3)
        assert_is_version(reader.follow(3, Following()), 3)

    def test_a_damaged_bucket_is_refused(
        self, store: WeightStore, reader: WeightStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ThreadPoolExecutor(1) as thread, monkeypatch.context() as patch:
            begun = list[Future[dict[str, torch.Tensor]]]()

            def damage(number: int) -> None:
                if number == 1:
                    self.damage(store, 3)
                    begun.append(thread.submit(reader.follow, 3, Following()))

            self.on_bucket(patch, damage)
            store.publish(3, tensors_of(3, size=SIZE))
            with pytest.raises(WeightsError, match="version 3"):
                begun[0].result()

    def test_a_version_that_is_given_up_is_dropped(
        self, store: WeightStore, reader: WeightStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(number: int) -> None:
            if number == 2:
                raise OSError("the disk is full")

        store.publish(2, tensors_of(2))
        with monkeypatch.context() as patch, self.following(reader, 3, Following(0.5)) as read:
            self.on_bucket(patch, fail)
            with pytest.raises((WeightsError, OSError), match="the disk is full"):
                store.publish(3, tensors_of(3, size=SIZE))
            with pytest.raises(WeightsError, match="version 3"):
                read.result()
        assert reader.versions() == (2,)
        store.publish(3, tensors_of(3, size=SIZE))
        assert_is_version(reader.follow(3, Following()), 3)

    def test_a_version_that_is_removed_at_its_end_is_read_whole_or_refused(
        self, store: WeightStore, reader: WeightStore
    ) -> None:
        with self.following(reader, 3, Following(0.5)) as read:
            store.publish(3, tensors_of(3, size=SIZE))
            store.publish(4, tensors_of(4))
            store.retain(1)
            with suppress(WeightsError):
                assert_is_version(read.result(), 3)
        assert_is_version(reader.follow(4, Following()), 4)

    def test_a_reader_that_is_ended_waits_no_longer(self, reader: WeightStore) -> None:
        following = Following()
        with self.following(reader, 3, following) as read:
            following.end()
            with pytest.raises(WeightsError, match="version 3"):
                read.result()
