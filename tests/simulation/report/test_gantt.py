"""The picture of simulated runs: lanes, sampling, and coordinates of a real simulation."""

import re
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.control.schedule.schedules import named_schedule
from rollart_flow.simulation.cluster.simulated_cluster import simulate
from rollart_flow.simulation.hardware import H20, H800, QWEN3_8B
from rollart_flow.simulation.record import Activity, Record
from rollart_flow.simulation.report.gantt import Bar, Fate, Timeline, pack, render, tick_s, timeline
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.workloads import FROZEN_LAKE, GEM_MATH

TINY = Scenario(
    "tiny", QWEN3_8B, (GEM_MATH, FROZEN_LAKE), (Pool(H20, 2),), Pool(H800, 2),
    batch_size=16, group_size=4,
)  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    """A run for each of two schedules."""
    return {
        name: simulate(TINY, named_schedule(name), steps=5) for name in ("sync_plus", "rollart(1)")
    }


def bar(name: str, start: float, end: float) -> Bar:
    return Bar(name, "gem-math", Fate.TRAINED, start, end, end)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=40))
def test_lanes_are_as_many_as_run_at_the_busiest_moment(pairs: list[tuple[int, int]]) -> None:
    packed = pack(bar(str(i), start, start + long) for i, (start, long) in enumerate(pairs))
    lanes: dict[int, float] = {}
    for one in packed:
        assert lanes.get(one.lane, 0) <= one.start
        lanes[one.lane] = one.committed
    busiest = max(
        (sum(s <= moment < s + long for s, long in pairs) for moment, _ in pairs), default=0
    )
    assert len(lanes) == busiest


@pytest.mark.parametrize(
    ("seconds", "step"), [(0.9, 0.1), (12.0, 1.0), (13.0, 2.0), (1816.0, 200.0), (60.0, 5.0)]
)
def test_ticks_are_round(seconds: float, step: float) -> None:
    assert tick_s(seconds) == pytest.approx(step)


def test_every_trajectory_is_a_bar_with_its_times(records: dict[str, Record]) -> None:
    record = records["rollart(1)"]
    shown = timeline("tiny", record)
    assert len(shown.bars) == len(record.attempts)
    trained = {one.name.split(",")[0] for one in shown.bars if one.fate is Fate.TRAINED}
    assert trained == {t for batch in record.batches.values() for t in batch.trajectory_ids}
    thrown = {one.name.split(",")[0] for one in shown.bars if one.fate is Fate.THROWN}
    assert thrown
    assert set(record.left) <= thrown
    for one in shown.bars:
        attempt = record.attempts[one.name.split(",")[0]]
        assert (one.start, one.ended) == (attempt.started, attempt.ended)
        assert one.committed == attempt.committed


def test_the_weights_are_updated_while_rollout_is_suspended(records: dict[str, Record]) -> None:
    # Overlapped, nobody is served by the weights of the last step.
    for name, count in (("sync_plus", 5), ("rollart(1)", 4)):
        weights = timeline("tiny", records[name]).weights
        suspensions = [span for span in weights if span.activity is Activity.SUSPEND]
        updates = [span for span in weights if span.activity is Activity.UPDATE]
        assert len(updates) == count
        for update in updates:
            assert any(s.start <= update.start and update.end <= s.end for s in suspensions)


def test_in_turns_rollout_is_suspended_while_training_trains(records: dict[str, Record]) -> None:
    shown = timeline("tiny", records["sync_plus"])
    trains = [span for span in shown.training if span.activity is Activity.TRAIN]
    suspensions = [span for span in shown.weights if span.activity is Activity.SUSPEND]
    assert [s.start for s in suspensions] == [t.start for t in trains]
    assert all(s.end > t.end for s, t in zip(suspensions, trains, strict=True))


def test_a_long_run_is_sampled_by_whole_groups_of_each_domain(records: dict[str, Record]) -> None:
    record = records["sync_plus"]
    shown = timeline("tiny", record, most=24)
    assert len(record.attempts) == 80
    assert shown.title == (
        "tiny (one of every 4 groups of each domain is drawn: 24 of 80 trajectories)"
    )
    of_each = Counter(record.attempts[one.name.split(",")[0]].group_id for one in shown.bars)
    assert set(of_each.values()) == {4}
    assert Counter(one.domain for one in shown.bars) == {"gem-math": 12, "frozenlake": 12}


def boxes(root: ElementTree.Element) -> list[tuple[str, float, float, float, float]]:
    """(class, left, top, right, bottom) of every rectangle, on the canvas."""
    found = []
    for group in (root, *root.findall(f"{SVG}g")):
        place = re.match(r"translate\((\S+) (\S+)\)", group.get("transform", ""))
        dx, dy = map(float, place.groups()) if place else (0.0, 0.0)
        for rect in group.findall(f"{SVG}rect"):
            x, y, width, height = (
                float(rect.get(name, "0")) for name in ("x", "y", "width", "height")
            )
            found.append((rect.get("class", ""), x + dx, y + dy, x + dx + width, y + dy + height))
    return found


def test_runs_share_a_canvas_and_a_scale(records: dict[str, Record]) -> None:
    runs = [timeline(name, record) for name, record in records.items()]
    root = ElementTree.fromstring(render(runs))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    drawn = boxes(root)
    assert all(0 <= left <= right <= width for _, left, _, right, _ in drawn)
    assert all(0 <= top <= bottom <= height for _, _, top, _, bottom in drawn)
    groups = root.findall(f"{SVG}g")
    for group, run in zip(groups, runs, strict=True):
        (train, *_) = (span for span in run.training if span.activity is Activity.TRAIN)
        (rect, *_) = (r for r in group.findall(f"{SVG}rect") if r.get("class") == "train")
        scale = float(rect.get("width", "0")) / (train.end - train.start)
        assert scale == pytest.approx(1100 / max(one.seconds for one in runs), rel=1e-2)


def test_the_same_runs_give_the_same_text(records: dict[str, Record]) -> None:
    again = simulate(TINY, named_schedule("rollart(1)"), steps=5)
    assert render([timeline("a", again)]) == render([timeline("a", records["rollart(1)"])])


def test_names_of_users_cannot_break_the_picture(records: dict[str, Record]) -> None:
    shown = timeline('<b> & "me"', records["sync_plus"])
    bars = tuple(replace(one, domain="a<b&c") for one in shown.bars)
    root = ElementTree.fromstring(render([replace(shown, bars=bars)]))
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {'<b> & "me"', "a<b&c"} <= texts


def test_nothing_at_all_is_a_picture_too() -> None:
    ElementTree.fromstring(render([]))
    ElementTree.fromstring(render([Timeline("empty", (), (), ())]))
