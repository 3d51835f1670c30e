"""What stores promise whose versions outlive their driver: a test of such a store subclasses
`LostDriverConformance` too.
"""

from abc import ABC, abstractmethod
from pathlib import Path

from rollart_flow.weights import WeightStore
from rollart_flow.weights.following import Following
from rollart_flow.weights.terms import FolderTerm
from tests.weights.conformance import assert_is_version, tensors_of


class LostDriverConformance(ABC):
    """The tests."""

    @abstractmethod
    def make_store(self, place: Path) -> WeightStore:
        """Open the store at this place."""

    def test_versions_that_a_lost_driver_publishes_are_not_read(self, tmp_path: Path) -> None:
        late, own, reader = (self.make_store(tmp_path) for _ in range(3))
        for number in range(3):
            late.publish(number, tensors_of(number))
        own.begin_term(FolderTerm(2, 1))
        own.remove_after(1)
        assert not own.holds_own(1)
        own.publish(1, tensors_of(1))
        assert own.holds_own(1)
        late.publish(2, tensors_of(100))
        late.publish(3, tensors_of(100))
        assert reader.versions() == (0, 1)
        own.publish(2, tensors_of(2))
        late.retain(1)
        assert_is_version(reader.read(2), 2)
        assert_is_version(reader.follow(2, Following()), 2)
        assert reader.manifest(2).uri.endswith("v000002.000002-000001")
        own.retain(1)
        assert reader.versions() == (2,)
