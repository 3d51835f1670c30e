"""The context policy of a node: its setting, by domain and by a domain's own declaration."""

from dataclasses import dataclass
from typing import Any

import pytest

from rollart_flow import evaluate, rollout, tasks
from rollart_flow.control.context.base import ContextPolicy
from rollart_flow.control.context.registry import CONTEXTS, named_context
from rollart_flow.envs import FrozenLake
from rollart_flow.errors import PipelineError, SettingsError
from tests.pipeline.parts import LAKE, POLICY, SUMS


@dataclass(frozen=True)
class LongLake(FrozenLake):
    context: str | None = "cut(keep=0.25)"


def test_a_setting_goes_before_what_the_domain_declares() -> None:
    own = LongLake()
    given = (None, "summarize", "end")
    nodes = [rollout(tasks(own), POLICY, context=each) for each in given]
    found = [node.attempt_limits(own, POLICY).context for node in nodes]
    assert found == ["cut(keep=0.25)", "summarize", "end"]


def test_a_domain_may_have_its_own() -> None:
    by_domain = {"frozenlake": {"context": "cut", "max_branches": 3}}
    node = rollout(tasks(LAKE, SUMS), POLICY, by_domain=by_domain)
    lake, sums = (node.attempt_limits(domain, POLICY) for domain in (LAKE, SUMS))
    assert (lake.context, lake.max_branches) == ("cut", 3)
    assert (sums.context, sums.max_branches) == (None, 64)


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ("cute", r"expected one of cut, end, notes, summarize \(did you mean cut\?\)"),
        ("ends", r"did you mean end\?"),
        ("cut(keep=2)", "keep should be"),
        ("cut(size=2)", "unexpected keyword argument 'size'"),
        ("cut(", "is no name like"),
        ("notes", "which domain 'frozenlake' cannot take"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_built(context: str, said: str) -> None:
    for build in (
        lambda **given: rollout(tasks(LAKE), POLICY, **given),
        lambda **given: evaluate(POLICY, LAKE, **given),
    ):
        with pytest.raises(PipelineError, match=said) as error:
            build(context=context)
        assert "\n" not in str(error.value)


def test_every_variant_is_a_context_policy_with_defaults() -> None:
    for name, kind in CONTEXTS.variants():
        made: Any = named_context(name)
        assert isinstance(made, kind)
        assert isinstance(made, ContextPolicy)
    assert named_context("end") is None
    with pytest.raises(SettingsError, match="at should be"):
        named_context("cut(at=-1)")
