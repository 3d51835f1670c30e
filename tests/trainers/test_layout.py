"""Layouts of ranks: what divides, and the refusal of what does not."""

from dataclasses import replace
from typing import Any

import pytest

from rollart_flow import Policy
from rollart_flow.errors import SettingsError
from rollart_flow.trainers.build import check_trainer
from rollart_flow.trainers.layout import Layout, layout_of
from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.kernels import describe_kernels


def test_stages_are_among_what_the_bits_depend_on_only_where_there_are_several() -> None:
    alone = Ranks(count=4, replicas=2)
    assert "pipeline_parallel" not in describe_kernels(alone, RankSettings())
    assert '"tensor_parallel": 2' in describe_kernels(alone, RankSettings())
    staged = describe_kernels(replace(alone, stages=2), RankSettings())
    assert '"pipeline_parallel": 2' in staged
    assert '"tensor_parallel": 1' in staged


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"backend": "megatron", "ranks": 3, "tensor_parallel": 2}, "ranks=3: must be a multiple"),
        ({"backend": "megatron", "tensor_parallel": 2}, "ranks=1: must be a multiple"),
        ({"backend": "fsdp2", "ranks": 2, "tensor_parallel": 2}, "set backend to megatron"),
        ({"backend": "megatron", "sequence_parallel": True}, "tensor_parallel of 2 or more"),
        ({"backend": "megatron", "tensor_parallel": 0}, "tensor_parallel should be"),
        ({"backend": "megatron", "collective_timeout_s": 0}, "collective_timeout_s should be"),
    ],
    ids=str,
)
def test_a_layout_that_does_not_divide_is_one_line(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        RankSettings(**wrong)
    assert "\n" not in str(caught.value)


def test_what_tensor_and_pipeline_parallel_leave_is_data_parallel() -> None:
    assert layout_of("megatron", 8, 2).data == 4
    assert layout_of("megatron", 2, 2) == Layout(tensor=2)
    assert layout_of("fsdp2", 2).data == 2


def test_a_policy_that_does_not_divide_is_refused_before_a_run_starts() -> None:
    policy = Policy.tiny(hidden=48, heads=6)
    check_trainer(policy, RankSettings(backend="megatron", ranks=3, tensor_parallel=3))
    with pytest.raises(SettingsError, match=r"tensor_parallel=2: .* key and value heads \(3\)"):
        check_trainer(policy, RankSettings(backend="megatron", ranks=2, tensor_parallel=2))
    staged = RankSettings(backend="megatron", ranks=3, pipeline_parallel=3)
    with pytest.raises(SettingsError, match=r"pipeline_parallel=3: .* layers \(2\)"):
        check_trainer(Policy.tiny(layers=2), staged)
