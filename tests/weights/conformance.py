"""What every weight store promises. A backend's test subclasses `WeightStoreConformance`, gives
`make_store`, and inherits every test.

`make_store` opens the same store each time it is called within one test: it stands for another
process that opens it.
"""

from abc import ABC, abstractmethod
from pathlib import Path

import pytest
import torch

from rollart_flow.errors import VersionMissingError, WeightsError
from rollart_flow.weights import TensorEntry, WeightStore, fingerprint
from rollart_flow.weights.base import AdapterEntry


def tensors_of(version: int, *, size: int = 64) -> dict[str, torch.Tensor]:
    """Tensors of several dtypes and shapes that all say which version they are of."""
    return {
        "model.embed_tokens.weight": torch.full((size, 8), float(version)),
        "model.norm.weight": torch.full((8,), float(version), dtype=torch.bfloat16),
        "model.scale": torch.tensor(float(version)),
        "model.ids": torch.full((3,), version, dtype=torch.int64),
    }


def assert_is_version(tensors: dict[str, torch.Tensor], version: int) -> None:
    """Every element of every tensor is the version's number."""
    assert sorted(tensors) == sorted(tensors_of(0))
    for tensor in tensors.values():
        assert (tensor == version).all()


class WeightStoreConformance(ABC):
    """The tests."""

    @abstractmethod
    def make_store(self, place: Path) -> WeightStore:
        """Open the store at this place; the place may be used as an address of any kind."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> WeightStore:
        return self.make_store(tmp_path)

    def test_what_is_read_is_what_was_published(self, store: WeightStore) -> None:
        published = tensors_of(3)
        store.publish(3, published)
        read = store.read(3)
        assert read.keys() == published.keys()
        for name, tensor in published.items():
            assert read[name].dtype == tensor.dtype
            assert read[name].shape == tensor.shape
            assert torch.equal(read[name], tensor)

    def test_what_is_said_of_a_version_before_is_what_is_published(
        self, store: WeightStore
    ) -> None:
        published = tensors_of(3)
        made = store.describe(3, published)
        assert store.versions() == ()
        assert store.publish(3, published) == made

    def test_a_checksum_that_the_caller_has_is_not_taken_again(self, store: WeightStore) -> None:
        published = tensors_of(3)
        assert store.publish(3, published, fingerprint(published)) == store.manifest(3)
        assert store.manifest(3).checksum == fingerprint(published)
        assert_is_version(store.read(3), 3)
        assert store.publish(4, published, "known").checksum == "known"

    def test_manifest_describes_the_tensors(self, store: WeightStore) -> None:
        published = tensors_of(3)
        manifest = store.publish(3, published)
        assert manifest == store.manifest(3)
        assert manifest.version == 3
        assert manifest.checksum == fingerprint(published)
        assert manifest.size_bytes == 64 * 8 * 4 + 8 * 2 + 4 + 3 * 8
        assert TensorEntry("model.norm.weight", "bfloat16", (8,)) in manifest.tensors
        assert [entry.name for entry in manifest.tensors] == sorted(published)

    def test_a_manifest_names_the_base_of_an_adapter(self, store: WeightStore) -> None:
        adapter = AdapterEntry(base=1, rank=4, alpha=8)
        assert store.describe(3, tensors_of(3), adapter=adapter).adapter == adapter
        made = store.publish(3, tensors_of(3), adapter=adapter, lasting=True)
        assert store.manifest(3) == made
        assert store.manifest(3).adapter == adapter
        assert store.publish(4, tensors_of(4)).adapter is None

    def test_another_process_reads_it(self, store: WeightStore, tmp_path: Path) -> None:
        store.publish(1, tensors_of(1))
        other = self.make_store(tmp_path)
        assert other.versions() == (1,)
        assert_is_version(other.read(1), 1)

    def test_an_empty_store_has_no_versions(self, store: WeightStore) -> None:
        assert store.versions() == ()
        assert store.retain(1) == ()

    def test_a_missing_version_is_refused_in_one_line(self, store: WeightStore) -> None:
        store.publish(1, tensors_of(1))
        for ask in (store.read, store.manifest):
            with pytest.raises(VersionMissingError, match="version 7") as caught:
                ask(7)
            assert "\n" not in str(caught.value)

    def test_publishing_equal_tensors_again_changes_nothing(self, store: WeightStore) -> None:
        first = store.publish(2, tensors_of(2))
        reordered = dict(reversed(list(tensors_of(2).items())))
        assert store.publish(2, reordered) == first
        assert_is_version(store.read(2), 2)

    def test_publishing_other_tensors_under_the_number_is_refused(self, store: WeightStore) -> None:
        store.publish(2, tensors_of(2))
        with pytest.raises(WeightsError, match="other tensors"):
            store.publish(2, tensors_of(3))
        assert_is_version(store.read(2), 2)

    def test_nothing_and_negative_versions_are_refused(self, store: WeightStore) -> None:
        with pytest.raises(WeightsError):
            store.publish(1, {})
        with pytest.raises(WeightsError):
            store.publish(-1, tensors_of(1))
        assert store.versions() == ()

    def test_published_tensors_are_a_copy(self, store: WeightStore) -> None:
        tensors = tensors_of(1)
        store.publish(1, tensors)
        tensors["model.scale"].fill_(9.0)
        read = store.read(1)
        assert_is_version(read, 1)
        read["model.scale"].fill_(9.0)
        assert_is_version(store.read(1), 1)

    def test_views_and_tied_tensors_can_be_published(self, store: WeightStore) -> None:
        base = torch.arange(12.0).reshape(3, 4)
        published = {"tied_a": base, "tied_b": base, "column": base[:, 1], "turned": base.T}
        store.publish(1, published)
        read = store.read(1)
        assert all(torch.equal(read[name], published[name]) for name in published)

    def test_parameters_can_be_published(self, store: WeightStore) -> None:
        parameter = torch.nn.Parameter(torch.ones(3))
        store.publish(1, {"weight": parameter})
        assert not store.read(1)["weight"].requires_grad

    def test_retain_keeps_the_newest_and_the_named(self, store: WeightStore) -> None:
        for version in (0, 1, 2, 5, 9):
            store.publish(version, tensors_of(version))
        assert store.retain(2, keep=(1, 777)) == (0, 2)
        assert store.versions() == (1, 5, 9)
        assert_is_version(store.read(1), 1)
        with pytest.raises(WeightsError):
            store.read(2)
        assert store.retain(2, keep=(1,)) == ()

    def test_retain_never_removes_the_newest(self, store: WeightStore) -> None:
        store.publish(1, tensors_of(1))
        with pytest.raises(WeightsError):
            store.retain(0)
        assert store.versions() == (1,)

    def test_versions_after_one_are_removed_and_may_be_published_with_other_tensors(
        self, store: WeightStore
    ) -> None:
        for version in (1, 2, 3):
            store.publish(version, tensors_of(version))
        assert store.remove_after(1) == (2, 3)
        assert store.versions() == (1,)
        store.publish(2, tensors_of(7))
        assert_is_version(store.read(2), 7)
        assert store.remove_after(2) == ()

    def test_a_collected_version_can_be_published_again(self, store: WeightStore) -> None:
        store.publish(1, tensors_of(1))
        store.publish(2, tensors_of(2))
        store.retain(1)
        store.publish(1, tensors_of(1))
        assert store.versions() == (1, 2)
        assert_is_version(store.read(1), 1)

    def test_versions_beyond_six_digits_keep_their_order(self, store: WeightStore) -> None:
        for version in (1_000_001, 999_999, 12):
            store.publish(version, tensors_of(version))
        assert store.versions() == (12, 999_999, 1_000_001)
