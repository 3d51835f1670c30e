"""Which deaths restart the trainer alone.

The processes are stand-ins: a machine without GPUs has no trainer that shares its devices with
engines, or sends them the weights.
"""

from types import SimpleNamespace
from typing import cast

import pytest
import ray

from rollart_flow.pipeline import Pipeline
from rollart_flow.runner.processes import RunProcesses
from rollart_flow.runner.trainer_restart import only_trainer_died

RANKS = ["trainer-cpu-0", "trainer-cpu-1"]


def alone(*died: str, in_turns: bool = False, weights: str = "local", group: object = None) -> bool:
    placement = SimpleNamespace(in_turns=in_turns, group=group)
    workers = [SimpleNamespace(name=name, placement=placement) for name in RANKS]
    processes = SimpleNamespace(trainers=SimpleNamespace(workers=workers))
    pipeline = SimpleNamespace(train=SimpleNamespace(weights=weights))
    return only_trainer_died(cast(RunProcesses, processes), cast(Pipeline, pipeline), died)


def test_ranks_that_others_do_not_depend_on_restart_alone() -> None:
    assert alone("trainer-cpu-0")
    assert alone(*RANKS)


@pytest.mark.parametrize("died", [(), ("buffer",), ("trainer-cpu-0", "mooncake")])
def test_other_deaths_are_not_cured_by_another_trainer(died: tuple[str, ...]) -> None:
    assert not alone(*died)


def test_engines_restart_with_a_trainer_whose_devices_or_connections_they_share() -> None:
    assert not alone("trainer-cpu-0", in_turns=True)
    assert not alone("trainer-cpu-0", weights="nccl")


@pytest.mark.parametrize(("state", "restarts"), [("CREATED", True), ("RESCHEDULING", False)])
def test_a_trainer_whose_resources_went_with_a_node_is_placed_anew_with_all_others(
    state: str, restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {"a": {"state": "CREATED"}, "b": {"state": state}}
    monkeypatch.setattr(ray.util, "placement_group_table", lambda group: tables[group.id])
    assert alone("trainer-cpu-0", group=SimpleNamespace(id="a"))
    assert alone("trainer-cpu-0", group=SimpleNamespace(id="b")) is restarts
