"""How many blocks of attempts a run has in flight."""

import pytest

from rollart_flow.runner.dataflow import blocks_in_flight


@pytest.mark.parametrize(
    ("groups", "attempts", "blocks"),
    [
        pytest.param(4, 32, 32, id="few attempts: each may be a block of its own"),
        pytest.param(20, 160, 64, id="few groups: 64 blocks cost little"),
        pytest.param(128, 1024, 256, id="two for each group"),
        pytest.param(1024, 1024, 1024, id="groups of one: a block for each attempt"),
    ],
)
def test_blocks_are_bounded_by_groups_rather_than_attempts(
    groups: int, attempts: int, blocks: int
) -> None:
    assert blocks_in_flight(groups, attempts) == blocks
