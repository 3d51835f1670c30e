"""Views: parameters are literals, rows come in pages, the text that is shown is what was run."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.errors import QueryError
from rollart_flow.store import Run, Snapshot
from rollart_flow.store.sql import bound, parameters, run_sql
from rollart_flow.views.pages import PAGES
from rollart_flow.views.view import Page, View, ViewReader
from tests.runs import small_run

ONE_ROW = {"steps": pl.LazyFrame({"step": [1]})}
BY_TASK = View(
    "test.tasks",
    "Tasks",
    "select trajectory_id, task_id from trajectories where task_id = :task and seq >= :first",
    parameters={"task": str},
    lookups={"first": "select min(seq) from trajectories where task_id = :task"},
    order="trajectory_id",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return small_run(Path(tmp_path_factory.mktemp("views")))


values = st.one_of(
    st.text(st.characters(codec="utf-8")),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
)


@given(values)
def test_a_value_comes_back_as_it_was_bound(value: str | float | bool | None) -> None:
    query = bound(
        "select :value as value from steps where step >= :one", {"value": value, "one": 1}
    )
    found = run_sql(query, ONE_ROW)["value"][0]
    assert found == value
    assert not isinstance(value, bool) or isinstance(found, bool)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63, "\ud800"])
def test_a_value_that_no_literal_expresses_is_refused(value: str | float) -> None:
    with pytest.raises(QueryError, match="is no"):
        bound("select :value", {"value": value})


def test_colons_of_texts_and_casts_are_no_parameters() -> None:
    query = "select ':a', step::double, \":b\", step-:c -- :d"
    assert parameters(query) == {"c"}
    assert bound(query, {"c": -1}).strip() == "select ':a', step::double, \":b\", step-(-1)"
    with pytest.raises(QueryError, match="parameter :c has no value"):
        bound(query, {})


def test_a_lookup_stands_in_the_shown_query_as_a_number(run: Run) -> None:
    rows = ViewReader(run.snapshot()).read(BY_TASK, {"task": "arithmetic-2"})
    first = run.trajectories.filter(pl.col("task_id") == "arithmetic-2").select(pl.col("seq").min())
    assert f"seq >= {first.collect().item()}" in rows.query
    assert run.sql(rows.query).equals(rows.frame)


def test_pages_follow_each_other_without_a_gap(run: Run) -> None:
    reader = ViewReader(run.snapshot())
    view = View("test.all", "All", "select trajectory_id as id from trajectories", order="id")
    found: list[str] = []
    page = Page(rows=10)
    while (rows := reader.read(view, page=page)).more:
        found += list(rows.frame["id"])
        page = Page(offset=page.offset + 10, rows=10)
    found += list(rows.frame["id"])
    assert found == sorted(run.trajectories.collect()["trajectory_id"])


def test_a_reader_sorts_by_a_column_of_the_result_only(run: Run) -> None:
    reader = ViewReader(run.snapshot())
    view = View("test.steps", "Steps", "select step, loss as l from steps", order="step")
    assert list(reader.read(view, page=Page(sort="-step")).frame["step"]) == [4, 3, 2, 1]
    for column in ("seq desc; --", 'l" desc, "seq', "nothing"):
        with pytest.raises(QueryError, match="has no column"):
            reader.read(view, page=Page(sort=column))


def late_steps(snapshot: Snapshot, after: int) -> pl.LazyFrame:
    """Return the steps after one."""
    return snapshot.steps.filter(pl.col("step") > after).select("step").sort("step")


def test_a_view_that_is_a_function_shows_python_that_gives_its_rows(run: Run) -> None:
    view = View("test.late", "Late", parameters={"after": int}, function=late_steps)
    reader = ViewReader(run.snapshot())
    rows = reader.read(view, {"after": "1"}, Page(sort="-step", rows=2))
    assert (list(rows.frame["step"]), rows.more) == ([4, 3], True)
    shown: dict[str, object] = {}
    *lines, last = rows.query.split("\n\n")[:2]
    exec("\n".join(lines), shown)
    again = eval(last, shown)
    assert isinstance(again, pl.DataFrame)
    assert list(again["step"]) == [2, 3, 4]
    assert "def late_steps" in rows.query


@pytest.mark.parametrize("value", ["three", "", None])
def test_a_parameter_of_another_type_is_refused(run: Run, value: str | None) -> None:
    view = View(
        "test.one", "One", "select step from steps where step = :step", parameters={"step": int}
    )
    with pytest.raises(QueryError, match="the parameter step"):
        ViewReader(run.snapshot()).read(view, {"step": value})


def test_the_name_of_a_view_begins_with_a_page_and_stands_for_one_view() -> None:
    views = {view for page in PAGES.values() for view in map(id, page)}
    names = {view.name for page in PAGES.values() for view in page}
    assert len(views) == len(names)
