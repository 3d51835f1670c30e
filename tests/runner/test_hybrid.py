"""Engines and trainer on the same devices, which they hold in turns: schedule hybrid."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.control.schedule.declarations import Swap
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import hybrid
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.errors import RunFailedError, SettingsError
from rollart_flow.resources import ResourceManager
from rollart_flow.runner.device_turns import check_turns
from rollart_flow.runner.executors import executor_for
from rollart_flow.runner.executors.inline import MachineResources
from rollart_flow.runner.placement import place_workers, preview
from rollart_flow.types import EventKind
from tests.local_ray import own_ray
from tests.runner.local import events, run_with
from tests.runner.world import check_sound, source

TURNS = """
prompts = tasks(Coin(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=6, engine_workers=2)
batches = buffer(reward(trajectories, tokens_seen), batch_size=16, schedule="hybrid")
steps = train(batches, policy, gated, steps=3, backend="fsdp2", ranks=2, checkpoint_every=2)
pipeline = Pipeline("coins", steps)
"""


def pipeline(**overrides: object) -> Pipeline:
    """A hybrid pipeline with overrides."""
    return scheduled(hybrid()).override({key: str(value) for key, value in overrides.items()})


def scheduled(schedule: Schedule) -> Pipeline:
    """A pipeline under a schedule."""
    policy = Policy.tiny()
    attempts = rollout(tasks(FrozenLake(), Arithmetic()), policy)
    steps = train(buffer(reward(attempts), schedule=schedule), policy, grpo(), steps=1)
    return Pipeline("p", steps)


@pytest.mark.usefixtures("ray_of_classes")
class TestOnTwoClasses:
    """Each test releases what it places."""

    def test_each_engine_takes_the_bundle_of_one_rank_and_both_reserve_a_half(self) -> None:
        placed = place_workers(
            pipeline(ranks=2, engine_workers=2, backend="fsdp2"), manager := ResourceManager()
        )
        assert [p.worker for p in placed.engines] == ["engine-h800-0", "engine-h800-1"]
        at = [[(p.group.id, p.bundle) for p in of] for of in (placed.engines, placed.training)]
        assert at[0] == at[1]
        everyone = [*placed.engines, *placed.training]
        assert all(p.in_turns and not p.shares for p in everyone), "nothing slides"
        manager.release(placed.training)

    def test_the_class_that_engines_ask_for_is_the_one_of_both(self) -> None:
        asked = pipeline(**{"rollout.hw_affinity": '{"default": "H20"}'})
        assert {grant.granted for grant in preview(asked)} == {"H20"}
        assert {grant.granted for grant in preview(pipeline())} == {"H800"}, "all were released"

    def test_ranks_that_find_no_room_on_one_class_are_refused(self) -> None:
        with pytest.raises(RunFailedError, match=r"25 ranks .* were placed on CPUs; lower"):
            preview(pipeline(ranks=25, engine_workers=25, backend="fsdp2"))
        assert {grant.granted for grant in preview(pipeline())} == {"H800"}


def test_without_accelerators_both_are_placed_on_the_cpus_as_ever() -> None:
    placed = place_workers(pipeline(sliding_workers=1), MachineResources())
    assert not any(p.in_turns for p in (*placed.engines, *placed.training))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"rollout.hw_affinity": "auto"}, "rollout.hw_affinity cannot be 'auto'"),
        (
            {"rollout.hw_affinity": '{"frozenlake": "H800", "default": "H20"}'},
            "must name one class, not H800 and H20",
        ),
        ({"sliding_workers": 1}, "set rollout.sliding_workers to 0"),
        ({"engine_workers": 2}, r"engine_workers \(2\) and train.ranks \(1\) must be equal"),
    ],
)
def test_what_cannot_be_placed_together_is_refused_in_one_line(
    overrides: dict[str, object], said: str
) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        check_turns(pipeline(**overrides))
    assert str(caught.value).startswith("buffer: schedule hybrid puts engines on the trainer's")
    assert "\n" not in str(caught.value)


def test_a_run_of_two_classes_is_refused_before_ray_starts() -> None:
    asked = pipeline(**{"rollout.hw_affinity": '{"frozenlake": "H800", "default": "H20"}'})
    with pytest.raises(SettingsError, match="must name one class, not H800 and H20"):
        executor_for(asked, "ray")


@pytest.mark.parametrize("swap", [Swap.FIRST, Swap.BEFORE, Swap.BESIDE])
def test_engines_that_generate_during_training_cannot_share_its_devices(swap: Swap) -> None:
    with pytest.raises(SettingsError, match="its engines must not generate while it trains"):
        check_turns(scheduled(replace(hybrid(), swap=swap)))


@pytest.mark.whole
def test_the_devices_are_freed_in_turns(tmp_path: Path) -> None:
    with own_ray(num_cpus=4, num_gpus=0, resources={"H800": 2.0}):
        run = run_with(source(tmp_path, TURNS), tmp_path)
    check_sound(run, 3, batch_size=16)
    bindings = run.bindings.sort("worker").collect()
    assert bindings["worker"].to_list() == [
        "engine-h800-0", "engine-h800-1", "trainer-h800-0", "trainer-h800-1",
    ]  # fmt: skip
    assert set(bindings["granted"]) == {"H800"}
    turns = run.events.sort("seq").filter(pl.col("kind").is_in(["release", "resume"])).collect()
    freed = turns["detail"].str.json_path_match("$.bytes").cast(pl.Int64)
    assert freed.drop_nulls().gt(0).all()
    by_side = [subject.partition("-")[0] for subject in turns["subject"]]
    one_step = ["engine", "engine", "trainer", "trainer"]
    assert [side for side in by_side if side in one_step] == one_step * 3
    assert events(run, EventKind.SLIDE).is_empty()
    assert events(run, EventKind.CRASH).is_empty()
