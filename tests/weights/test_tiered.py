"""Two stores as one: what must last does, and the rest is where it is fast."""

from pathlib import Path

import pytest

from rollart_flow.errors import WeightsError
from rollart_flow.weights import LocalWeightStore, WeightCapabilities, WeightStore
from rollart_flow.weights.following import Following
from rollart_flow.weights.tiered import TieredWeightStore
from tests.weights.conformance import WeightStoreConformance, assert_is_version, tensors_of


def fast(place: Path) -> LocalWeightStore:
    return LocalWeightStore(place / "fast")


def lasting(place: Path) -> LocalWeightStore:
    return LocalWeightStore(place / "lasting")


class TestTieredWeightStore(WeightStoreConformance):
    """The promises of every store."""

    def make_store(self, place: Path) -> WeightStore:
        return TieredWeightStore(fast(place), lasting(place))

    def test_retain_keeps_the_newest_and_the_named(self, store: WeightStore) -> None:
        """Those that are named have to have been published as lasting."""
        for version in (0, 1, 2, 5, 9):
            store.publish(version, tensors_of(version), lasting=version == 1)
        assert store.retain(2, keep=(1, 777)) == (0, 2)
        assert store.versions() == (1, 5, 9)
        assert_is_version(store.read(1), 1)
        with pytest.raises(WeightsError):
            store.read(2)


def test_what_lasts_is_read_where_the_fast_store_lost_it(tmp_path: Path) -> None:
    store = TieredWeightStore(fast(tmp_path), lasting(tmp_path))
    store.publish(1, tensors_of(1), lasting=True)
    store.publish(2, tensors_of(2))
    other = TieredWeightStore(fast(tmp_path / "restarted"), lasting(tmp_path))
    assert other.versions() == (1,)
    assert_is_version(other.read(1), 1)
    assert other.manifest(1).version == 1
    for ask in (other.read, other.manifest):
        with pytest.raises(WeightsError, match="version 2"):
            ask(2)


def test_a_version_is_followed_where_it_is_published(tmp_path: Path) -> None:
    following = Following(patience_s=0)
    store = TieredWeightStore(fast(tmp_path), lasting(tmp_path))
    store.publish(1, tensors_of(1))
    assert_is_version(store.follow(1, following), 1)
    lasting(tmp_path).publish(2, tensors_of(2))
    with pytest.raises(WeightsError, match="version 2"):
        store.follow(2, following)
    passing = TieredWeightStore(Passing(tmp_path / "passing"), lasting(tmp_path))
    assert_is_version(passing.follow(2, Following()), 2)


class Passing(LocalWeightStore):
    """Gives nothing to who comes late."""

    @property
    def capabilities(self) -> WeightCapabilities:
        return WeightCapabilities(latest=False, late_join=False)


def test_where_the_fast_store_gives_nothing_to_who_comes_late_every_version_lasts(
    tmp_path: Path,
) -> None:
    store = TieredWeightStore(Passing(tmp_path / "fast"), lasting(tmp_path))
    for version in (0, 1, 2):
        manifest = store.publish(version, tensors_of(version))
        assert manifest == lasting(tmp_path).manifest(version), "what can be read is recorded"
    assert lasting(tmp_path).versions() == (0, 1, 2)
    assert store.retain(2) == (0,)
    assert lasting(tmp_path).versions() == (1, 2), "as many as are asked for"


def test_a_lasting_version_goes_once_nobody_names_it(tmp_path: Path) -> None:
    store = TieredWeightStore(fast(tmp_path), lasting(tmp_path))
    for version in (1, 2):
        store.publish(version, tensors_of(version), lasting=True)
    store.publish(3, tensors_of(3))
    assert store.retain(1, keep=(1, 2)) == ()
    assert store.versions() == (1, 2, 3)
    assert store.retain(1) == (1,)
    assert store.versions() == (2, 3), "the newest that lasts is kept"
