"""Versions on their way to the store beside training, and a trainer's worker that trains on."""

import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rollart_flow.algorithms import grpo
from rollart_flow.errors import WeightsError, WeightStoreAwayError
from rollart_flow.models.folder import save_folder
from rollart_flow.resources import Placement, Remote, TypedCluster, register, start_actor
from rollart_flow.retries import RetryPolicy
from rollart_flow.rows import to_ipc
from rollart_flow.trainers.checkpoint.publishing import Publisher
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.worker import TrainWorker
from rollart_flow.weights import LocalWeightStore, Manifest, WeightCapabilities, fingerprint
from rollart_flow.weights.atomic import locked
from rollart_flow.weights.base import AdapterEntry
from rollart_flow.weights.memory import WeightSnapshot
from rollart_flow.weights.tiered import TieredWeightStore
from tests.trainers.cases import CONFIG, initial_weights, make_rows, table
from tests.weights.conformance import assert_is_version, tensors_of


class Told:
    """Who is told of versions."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.seconds: list[float] = []

    def __call__(self, version: int, push_s: float) -> None:
        self.versions.append(version)
        self.seconds.append(push_s)


@pytest.fixture
def store(tmp_path: Path) -> LocalWeightStore:
    return LocalWeightStore(tmp_path / "weights")


def test_a_version_is_there_before_anybody_is_told(store: LocalWeightStore) -> None:
    publisher, there = Publisher(store), list[int]()
    tensors = tensors_of(1)

    def announce(version: int, push_s: float) -> None:
        there.extend(store.versions())

    begun = publisher.begin(1, WeightSnapshot(tensors), None, announce)
    publisher.finish()
    assert there == [1]
    assert begun.under_way
    assert begun.manifest == store.manifest(1), "what was said of it before is what is there"
    assert begun.manifest.checksum == fingerprint(tensors)


def test_two_are_never_under_way(store: LocalWeightStore) -> None:
    publisher, told = Publisher(store), Told()
    with locked(Path(store.folder)):  # whoever else writes has to wait
        publisher.begin(1, WeightSnapshot(tensors_of(1)), None, told)
        second = threading.Thread(
            target=publisher.begin, args=(2, WeightSnapshot(tensors_of(2)), None, told)
        )
        second.start()
        assert store.versions() == ()
        assert told.versions == []
    second.join()
    assert 1 in store.versions(), "the second one began after the first"
    publisher.finish()
    assert told.versions == [1, 2]
    assert told.seconds[0] > 0
    assert_is_version(store.read(2), 2)


def test_what_is_removed_is_counted_with_the_version_that_is_under_way(
    store: LocalWeightStore,
) -> None:
    publisher = Publisher(store)
    for version in (0, 1):
        store.publish(version, tensors_of(version))
    with locked(Path(store.folder)):
        publisher.begin(2, WeightSnapshot(tensors_of(2)), None, Told())
        publisher.retain(2, frozenset())
    publisher.finish()
    assert store.versions() == (1, 2)


def test_a_failure_is_raised_before_the_next_version_whoever_asks(store: LocalWeightStore) -> None:
    publisher, told = Publisher(store), Told()
    store.publish(1, tensors_of(7))
    publisher.begin(1, WeightSnapshot(tensors_of(1)), None, told)
    for ask in (
        publisher.finish,
        lambda: publisher.publish(2, tensors_of(2), None, lasting=True),
        lambda: publisher.begin(2, WeightSnapshot(tensors_of(2)), None, told),
    ):
        with pytest.raises(WeightsError, match="was published with other tensors"):
            ask()
    assert told.versions == []
    assert store.versions() == (1,)


class FailingStore(LocalWeightStore):
    """A store whose storage fails for some calls."""

    def __init__(self, folder: Path, failures: int) -> None:
        super().__init__(folder)
        self._failures = failures

    def publish(
        self,
        version: int,
        tensors: Mapping[str, torch.Tensor],
        checksum: str | None = None,
        adapter: AdapterEntry | None = None,
        *,
        lasting: bool = False,
    ) -> Manifest:
        self._fail()
        return super().publish(version, tensors, checksum, adapter, lasting=lasting)

    def retain(self, newest: int, keep: Collection[int] = ()) -> tuple[int, ...]:
        self._fail()
        return super().retain(newest, keep)

    def _fail(self) -> None:
        if self._failures:
            self._failures -= 1
            raise WeightStoreAwayError("the disk does not answer")


@pytest.mark.parametrize("lasting", [True, False])
def test_a_publication_is_repeated_while_the_storage_fails(tmp_path: Path, lasting: bool) -> None:
    store, told = FailingStore(tmp_path, failures=2), Told()
    publisher = Publisher(store, RetryPolicy(backoff_s=0.001))
    if lasting:
        publisher.publish(1, tensors_of(1), None, lasting=True)
    else:
        publisher.begin(1, WeightSnapshot(tensors_of(1)), None, told)
    publisher.finish()
    assert store.versions() == (1,)
    assert told.versions == ([] if lasting else [1])
    (retried,) = publisher.retried()
    assert (retried.what, retried.failures) == ("publish version 1", 2)
    assert publisher.retried() == ()


def test_a_removal_is_repeated_while_the_storage_fails(tmp_path: Path) -> None:
    store = FailingStore(tmp_path, failures=1)
    publisher = Publisher(store, RetryPolicy(backoff_s=0.001))
    publisher.retain(1, frozenset())
    publisher.finish()
    assert [retried.what for retried in publisher.retried()] == ["remove old versions"]


def test_a_storage_that_stays_away_is_named(tmp_path: Path) -> None:
    publisher = Publisher(FailingStore(tmp_path, failures=99), RetryPolicy(limit_s=0))
    publisher.begin(1, WeightSnapshot(tensors_of(1)), None, Told())
    with pytest.raises(
        WeightStoreAwayError, match=r"the disk does not answer \(attempts: 1 in 0 s\)"
    ):
        publisher.finish()


class InStep(LocalWeightStore):
    """Published to by the trainer's own thread alone, like what sends from its GPU."""

    @property
    def capabilities(self) -> WeightCapabilities:
        return WeightCapabilities(late_join=False, overlap_publish=False)


def test_a_store_that_needs_the_trainers_own_thread_is_published_to_in_the_step(
    store: LocalWeightStore, tmp_path: Path
) -> None:
    tiers = TieredWeightStore(InStep(tmp_path / "fast"), store)
    publisher, told = Publisher(tiers), Told()
    begun = publisher.begin(1, WeightSnapshot(tensors_of(1)), None, told)
    assert not begun.under_way
    assert tiers.versions() == (1,)
    publisher.finish()
    assert told.versions == [], "the step says so itself"


class Coordinator:
    """Where the real one hears of versions."""

    def __init__(self) -> None:
        self._heard: list[int] = []

    @register("rank_zero")
    def published(self, version: int, push_s: float) -> None:
        assert push_s > 0
        self._heard.append(version)

    @register("rank_zero")
    def heard(self) -> list[int]:
        return self._heard


class Announced:
    """What the trainer calls, as `operators.train.Announcement` does."""

    def __init__(self, coordinator: Remote[Coordinator]) -> None:
        self._coordinator = coordinator

    def __call__(self, version: int, push_s: float) -> None:
        self._coordinator.call.published(version, push_s)


@pytest.fixture
def trainers(shared_ray: None, tmp_path: Path) -> Iterator[TypedCluster[TrainWorker]]:
    """A trainer of one rank, whose versions go to `weights`."""
    save_folder(tmp_path / "policy", CONFIG, initial_weights(), {})
    arguments: dict[str, Any] = {
        "settings": RankSettings(),
        "algorithm": grpo(),
        "folder": str(tmp_path / "policy"),
        "weights": "local",
        "weights_uri": str(tmp_path / "weights"),
        "run": str(tmp_path),
    }
    cluster = TypedCluster(
        [Placement("trainer", "training", "CPU")], TrainWorker, arguments=arguments
    )
    yield cluster
    cluster.shutdown()


def test_the_next_step_is_trained_while_a_version_is_published(
    trainers: TypedCluster[TrainWorker], store: LocalWeightStore
) -> None:
    coordinator = start_actor(Coordinator, num_cpus=0)()
    first, second = (to_ipc(table(make_rows(4, seed))) for seed in (1, 2))
    with locked(Path(store.folder)):
        one = trainers.call.train_step(1, first)
        begun = trainers.call.begin_publish(Announced(coordinator))
        assert begun is not None
        trainers.call.retain(2, frozenset())
        two = trainers.call.train_step(2, second)
        assert two.step == 2
        assert store.versions() == (), "nobody can read version 1"
        assert coordinator.call.heard() == []
    trainers.call.finish_publish()
    assert coordinator.call.heard() == [1]
    assert store.manifest(1) == begun.manifest
    assert fingerprint(store.read(1)) == one.fingerprint, "not those of step 2"
    published = trainers.call.publish(lasting=True)
    assert published is not None
    assert not published.under_way
    assert published.manifest.checksum == two.fingerprint
    assert store.versions() == (1, 2)
