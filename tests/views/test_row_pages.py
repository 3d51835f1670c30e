"""The views of the pages of a step, a group, a trajectory and events, on the demonstration run."""

from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from rollart_flow.store import Run, Snapshot
from rollart_flow.views import events, group, step, trajectory
from rollart_flow.views.pages import PAGES
from rollart_flow.views.view import Page, View, ViewReader

REPAIR, ODD = "g00000011-00", "g00000005-01'%2F<b>"
"""An attempt of a captured agent with four branches, and one whose id needs quoting."""


@pytest.fixture(scope="module")
def tables(demo_run: Run) -> Snapshot:
    return demo_run.snapshot()


@pytest.fixture(scope="module")
def read(tables: Snapshot) -> Any:
    """Returns the rows of a view as mappings."""
    reader = ViewReader(tables)

    def rows(view: View, page: Page | None = None, **values: Any) -> list[dict[str, Any]]:
        return reader.read(view, {k: str(v) for k, v in values.items()}, page).frame.to_dicts()

    return rows


VALUES = {
    "step": {"step": "3"},
    "group": {"group": "g00000011"},
    "trajectory": {"trajectory": REPAIR},
    "events": {},
}
"""Parameters by page."""


OF_STORED_RUNS = (step.DRAWN, trajectory.DRAWN)
"""Views of rows that are drawn from stored runs, which the run of these tests does not have."""


def views() -> Iterator[tuple[str, View]]:
    for page in ("step", "group", "trajectory", "events"):
        yield from ((page, view) for view in PAGES[page] if view not in OF_STORED_RUNS)


@pytest.mark.parametrize(("page", "view"), [*views()], ids=lambda each: getattr(each, "name", each))
def test_every_view_has_rows_and_a_query_that_gives_them(
    page: str, view: View, demo_run: Run, tables: Snapshot
) -> None:
    rows = ViewReader(tables).read(view, VALUES[page])
    assert rows.frame.height > 0
    if not rows.python:
        assert_frame_equal(demo_run.sql(rows.query), rows.frame)


def test_the_rows_of_a_step_are_its_batch(read: Any, demo_run: Run) -> None:
    ids = [row["trajectory_id"] for row in read(step.ROWS, step=3)]
    assert ids == demo_run.batch(3)["trajectory_id"].to_pylist()


def test_a_group_whose_rewards_are_equal_is_marked(read: Any) -> None:
    marks = {row["domain"]: row["zero_variance"] for row in read(step.GROUPS, step=3)}
    assert marks == {"lake": True, "sums": False, "repair": False}


def test_the_bins_of_a_histogram_lead_to_their_rows(read: Any) -> None:
    bins = read(step.REWARDS, step=3)
    assert sum(each["episodes"] for each in bins) == 12
    for each in bins:
        found = read(step.ROWS, step=3, reward_from=each["low"], reward_to=each["high"])
        assert len({row["trajectory_id"].partition(".")[0] for row in found}) == each["episodes"]


def test_an_id_with_quotes_finds_its_trajectory(read: Any) -> None:
    assert [row["trajectory_id"] for row in read(trajectory.HEAD, trajectory=ODD)] == [ODD]
    assert len(read(trajectory.TOKENS, trajectory=ODD)) > 0


def test_the_tokens_are_those_of_the_row(read: Any, tables: Snapshot) -> None:
    row = tables.trajectories.filter(pl.col("trajectory_id") == ODD).collect().to_dicts()[0]
    tokens = read(trajectory.TOKENS, Page(rows=10_000), trajectory=ODD)
    assert [each["token_id"] for each in tokens] == row["token_ids"]
    assert [each["trained"] for each in tokens] == row["action_mask"]
    drawn = [each["logprob"] for each in tokens if each["sampled"]]
    pairs = zip(row["logprobs"], row["action_mask"], strict=True)
    assert drawn == pytest.approx([logprob for logprob, acts in pairs if acts])


def test_each_action_token_has_its_own_advantage_where_the_step_gave_one(
    read: Any, tables: Snapshot
) -> None:
    name = "g00000005-00"
    given = tables.batches.filter(pl.col("trajectory_id") == name).collect()["advantage"].to_list()
    shown = [each["advantage"] for each in read(trajectory.TOKENS, trajectory=name)]
    assert [each for each in shown if each is not None] == pytest.approx(given[0])


def test_text_and_messages_are_one_conversation(read: Any) -> None:
    plain = read(trajectory.MESSAGES, trajectory="g00000000-00")
    assert [row["role"] for row in plain] == ["user", "assistant"] * 3
    rows = read(trajectory.MESSAGES, trajectory=REPAIR)
    assert {row["role"] for row in rows} == {"system", "user", "assistant", "tool"}
    assert any(row["thinking"] for row in rows)
    assert [bool(row["calls"]) for row in rows if row["role"] == "assistant"] == [True] * 3 + [
        False
    ]


def test_images_are_named_in_their_message(read: Any, demo_run: Run) -> None:
    rows = read(trajectory.MESSAGES, trajectory="g00000006-00")
    names = [name for row in rows for name in row["images"] or ()]
    assert [demo_run.image(name).size for name in names] == [(48, 48)] * 2


def test_branches_say_which_of_them_was_trained_on(read: Any) -> None:
    rows = read(trajectory.BRANCHES, trajectory=f"{REPAIR}.2")
    assert [(row["branch"], row["reason"], row["step"]) for row in rows] == [
        (0, None, 3), (1, "untrained_call", None), (2, None, 3), (3, None, 3),
    ]  # fmt: skip


def test_the_spans_of_a_trajectory_are_in_order_and_have_versions(read: Any) -> None:
    for name in ("g00000008-01", REPAIR):
        spans = read(trajectory.SPANS, trajectory=name)
        assert [span["start_s"] for span in spans] == sorted(span["start_s"] for span in spans)
        assert all(span["end_s"] >= span["start_s"] for span in spans)
        made = [span for span in spans if span["span"] == "generate"]
        assert all(span["version_first"] is not None for span in made)
    assert {span["lane"] for span in spans} == {
        "environment", "policy", "queue", "reward", "training",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fate", "said"),
    [
        ("g00000008-01", "trained", "trained on in step 3 after"),
        ("g00000008-04", "environment_error", "ended as failed"),
        ("g00000009-04", "staleness_bound", "ended as stale"),
        ("g00000011-04", "group_complete", "ended as redundant"),
        ("g00001008-00", "staleness_bound", "was evicted with its group"),
        ("g00001009-00", "group_filtered", "filter varied"),
        ("g00002009-01", "filtered", "never scored, and was dropped"),
        (f"{REPAIR}.1", "untrained_call", "was not trained on (untrained_call)"),
        ("e00000020-00", "evaluation", "it is of the evaluation"),
    ],
)
def test_one_sentence_says_what_became_of_a_trajectory(
    name: str, fate: str, said: str, read: Any
) -> None:
    told = read(trajectory.STORY, trajectory=name)[0]
    assert told["fate"] == fate
    assert said in told["sentence"]


def test_a_trajectory_that_no_step_has_trained_on_yet_is_in_the_buffer(demo_run: Run) -> None:
    first = (
        demo_run.batches.filter(pl.col("step") == 3).select(pl.col("seq").min()).collect().item()
    )
    before = ViewReader(demo_run.as_of(seq=first - 1).snapshot())
    told = before.read(trajectory.STORY, {"trajectory": "g00000008-01"}).frame.to_dicts()[0]
    assert told["fate"] == "in the buffer"
    assert told["batched_at"] is None


def test_events_are_filtered_by_kind_reason_and_part_of_a_subject(read: Any) -> None:
    crashes = read(events.ROWS, kind="crash", subject="generation")
    assert [(row["subject"], row["reason"]) for row in crashes] == [("generation-0", "worker_lost")]
    assert read(events.ROWS, kind="crash", subject="training") == []
    counted = sum(row["events"] for row in read(events.COUNTS))
    assert counted == sum(row["events"] for row in read(events.TIMELINE))


def test_neighbours_are_the_steps_groups_and_attempts_beside(read: Any) -> None:
    assert read(step.NEIGHBOURS, step=1) == [{"previous": None, "next": 2}]
    beside = {"previous": "g00000008", "next": "g00000011"}
    assert read(group.NEIGHBOURS, group="g00000009") == [beside]
    beside = {"previous": f"{REPAIR[:-1]}1", "next": f"{REPAIR[:-1]}3"}
    assert read(trajectory.NEIGHBOURS, trajectory=f"{REPAIR[:-1]}2") == [beside]
