"""What the decorators of a worker's methods say, and what they refuse."""

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.resources import Placement, Worker, hw_mapping, register, register_serverless
from rollart_flow.resources.declarations import (
    Declaration,
    declaration,
    declarations,
    domain_of,
    wanted_classes,
)
from rollart_flow.resources.dispatch import MODES

HERE = Placement("w", "worker", "CPU")


class Decorated(Worker):
    """Declares one thing each."""

    @register(mode="split")
    def compute(self, rows: list[int]) -> list[int]:
        """Compute."""
        return rows

    @hw_mapping({"frozenlake": "H800", "default": "H20"})
    def generate(self, ids: list[int], domain: str = "default") -> list[int]:
        """Generate."""
        return ids

    @register_serverless("local://somewhere:scores")
    def score(self, trajectory: object) -> float:
        """Score."""
        return 0.0

    def plain(self) -> None:
        """Nothing in particular."""


def test_a_method_keeps_what_its_decorators_say_and_works_as_before() -> None:
    assert declaration(Decorated.compute) == Declaration(mode=MODES["split"])
    assert declaration(Decorated.score).url == "local://somewhere:scores"
    assert declaration(Decorated.plain) == Declaration()
    assert set(declarations(Decorated)) == {"compute", "generate", "score", "plain", "node"}
    assert Decorated(HERE).compute([1]) == [1]


@pytest.mark.parametrize(
    ("call", "domain"),
    [
        ((([1],), {}), "default"),
        ((([1], "web"), {}), "web"),
        ((([1],), {"domain": "math"}), "math"),
        ((([1],), {"domain": None}), "default"),
    ],
)
def test_the_domain_of_a_call_is_found_wherever_it_is_named(
    call: tuple[tuple[object, ...], dict[str, object]], domain: str
) -> None:
    assert domain_of(declaration(Decorated.generate), call) == domain


def test_the_papers_name_of_the_tag_is_taken_too() -> None:
    @hw_mapping({"default": "H20"})
    def generate(self: object, ids: list[int], tag_name: str) -> None: ...

    assert domain_of(declaration(generate), (([1], "web"), {})) == "web"


def test_decorators_go_together() -> None:
    @register(mode="execute_all")
    @hw_mapping({"default": "H20"})
    def warm(self: object, domain: str = "default") -> None: ...

    assert declaration(warm).mode is MODES["execute_all"]
    assert declaration(warm).affinity == {"default": "H20"}


def test_classes_that_all_methods_want_are_put_together() -> None:
    assert wanted_classes(declarations(Decorated)) == {"frozenlake": "H800", "default": "H20"}

    class Torn(Decorated):
        @hw_mapping({"default": "H800"})
        def embed(self, ids: list[int], domain: str) -> None: ...

    with pytest.raises(SettingsError, match="'default' to H20, but another method maps it to H800"):
        wanted_classes(declarations(Torn))


def test_what_cannot_work_is_refused_where_it_is_declared() -> None:
    with pytest.raises(
        SettingsError, match="no mode 'all'; there are execute_all, first_result, rank_zero"
    ):
        register(mode="all")  # type: ignore[call-overload]
    with pytest.raises(SettingsError, match="collect needs a dispatch"):
        register(collect=sum)  # type: ignore[call-overload]
    with pytest.raises(SettingsError, match="hw_affinity is empty"):
        hw_mapping({})
    with pytest.raises(SettingsError, match="no parameter 'domain' to route by"):
        hw_mapping({"default": "H20"})(Decorated.plain)
    with pytest.raises(SettingsError, match=r"'fc.example' is no address"):
        register_serverless("fc.example")
    with pytest.raises(SettingsError, match="must take one trajectory to run at fc://x"):
        register_serverless("fc://x")(Decorated.plain)
