"""Domains by name: a pipeline may give a text in place of a domain."""

import pytest

from rollart_flow import Policy, evaluate, tasks
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.envs.registry import ENVIRONMENTS, named_domain
from rollart_flow.errors import PipelineError, SettingsError


def test_a_name_is_that_of_the_domain() -> None:
    named: dict[str, object] = {name: each.name for name, each in ENVIRONMENTS.variants()}
    by_setting = {name for name, own in named.items() if isinstance(own, property)}
    assert {"gem", "gymnasium"} <= by_setting
    fixed = {name: str(own) for name, own in named.items() if name not in by_setting}
    assert {name: own.replace("-", "_") for name, own in fixed.items()} == {n: n for n in fixed}
    assert {"arithmetic", "frozenlake", "minesweeper", "reasoning_gym", "sokoban"} <= named.keys()


def test_a_name_stands_for_a_domain_with_its_settings() -> None:
    named = tasks("frozenlake(size=8, max_turns=20)", "arithmetic", group_size=4)
    assert named.domains == (FrozenLake(size=8, max_turns=20), Arithmetic())
    assert evaluate(Policy.tiny(), "frozenlake").domains == (FrozenLake(),)
    table = tasks([{"task_id": "1", "domain": "arithmetic"}], domains=["arithmetic"])
    assert table.domains == (Arithmetic(),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("frozenlak", "environment='frozenlak': expected one of .* (did you mean frozenlake?)"),
        ("frozenlake(width=4)", "environment 'frozenlake(width=4)': .* keyword argument 'width'"),
        ("frozenlake(size=5)", "FrozenLake: no fixed map of size 5"),
        ("a b", "environment 'a b' is no name like frozenlake or frozenlake(slippery=True)"),
    ],
)
def test_a_wrong_name_or_setting_is_refused_in_one_line(text: str, reason: str) -> None:
    pattern = reason.replace("(", r"\(").replace(")", r"\)").replace("?", r"\?")
    with pytest.raises(SettingsError, match=pattern):
        named_domain(text)
    with pytest.raises(PipelineError, match=f"^tasks: .*{pattern}"):
        tasks(text)
