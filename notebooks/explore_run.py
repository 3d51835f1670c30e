"""Explore a run: its learning curves, staleness and lag, its waits and its transcripts.

    marimo edit notebooks/explore_run.py -- --run NAME      (or `make notebook`)
    python notebooks/explore_run.py -- --run NAME           runs every cell once

RUN is a name in the store, a folder or a URI; ROLLART_RUN works too; the newest run by default.
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Explore a run")


@app.cell
def _():
    import os

    import altair as alt
    import marimo as mo
    import polars as pl

    from rollart_flow import errors, open_run
    from rollart_flow.analysis.spelling import speller
    from rollart_flow.cli.output import as_text
    from rollart_flow.cli.summary import summarize
    from rollart_flow.cli.summary_view import render_summary
    from rollart_flow.cli.transcript import read_trajectory, render_trajectory
    from rollart_flow.store import list_runs, store_uri
    from rollart_flow.views import overview, view
    from rollart_flow.views.spans import spans_of_step

    return (
        alt,
        as_text,
        errors,
        list_runs,
        mo,
        open_run,
        os,
        overview,
        pl,
        read_trajectory,
        render_summary,
        render_trajectory,
        spans_of_step,
        speller,
        store_uri,
        summarize,
        view,
    )


@app.cell
def _(errors, list_runs, mo, open_run, os, store_uri):
    def _newest():
        runs = list_runs()
        if not runs:
            raise errors.RunNotFoundError(f"no runs in {store_uri()}; `rollart run FILE` makes one")
        return runs[-1][0]

    run = open_run(mo.cli_args().get("run") or os.environ.get("ROLLART_RUN") or _newest())
    tables = run.snapshot()
    return run, tables


@app.cell
def _(as_text, mo, render_summary, run, summarize):
    summary = summarize(run)
    mo.vstack([mo.md(f"# {summary.name}"), mo.plain_text(as_text(render_summary(summary)))])
    return (summary,)


@app.cell
def _(alt, mo, overview, pl, tables, view):
    reader = view.ViewReader(tables)  # of the views that `rollart ui` shows
    successes = reader.read(overview.SUCCESS).frame
    evaluations = successes.filter(pl.col("metric").str.starts_with("success"))
    rewards = reader.read(overview.REWARD).frame
    success_chart = (
        alt.Chart(evaluations)
        .mark_line(point=True)
        .encode(
            x=alt.X("step:Q", title="training step"),
            y=alt.Y("value:Q", title="success", scale=alt.Scale(domain=[0, 1])),
            color="domain:N",
            strokeDash="metric:N",
        )
        .properties(width=320, height=220, title="success")
    )
    reward_chart = (
        alt.Chart(rewards)
        .mark_line()
        .encode(x=alt.X("step:Q", title="training step"), y="reward:Q")
        .properties(width=320, height=220, title="mean reward of the batch")
    )
    mo.vstack([mo.md("## Did it learn?"), success_chart | reward_chart])
    return evaluations, rewards


@app.cell
def _(alt, mo, pl, summary, tables):
    started = tables.trajectories.select("trajectory_id", "domain", "policy_version_start")
    trained = tables.batches.join(started, on="trajectory_id")
    ages = (
        trained.select(
            "domain",
            staleness=pl.col("policy_version") - pl.col("policy_version_start"),
            lag=pl.col("trained_version") - pl.col("policy_version_start"),
        )
        .unpivot(["staleness", "lag"], index="domain", variable_name="measure", value_name="age")
        .group_by("measure", "age", "domain")
        .len("trajectories")
        .sort("measure", "age", "domain")
        .collect()
    )
    ages_chart = (
        alt.Chart(ages)
        .mark_bar()
        .encode(
            x=alt.X("age:O", title="versions since the start"),
            y=alt.Y("trajectories:Q", title="trajectories trained on"),
            color="domain:N",
            column=alt.Column("measure:N", title=None),
        )
        .properties(width=280, height=220)
    )
    bound = "no bound" if not summary.bounded else f"alpha {summary.alpha:g} on {summary.bounded}"
    found = f"staleness at most {summary.staleness_max}, lag at most {summary.lag_max}; {bound}"
    meanings = (
        "Staleness counts up to the version that the engines served when the batch was formed, "
        "lag up to the version that was trained."
    )
    mo.vstack([mo.md(f"## How old? {found}\n\n{meanings}"), ages_chart])
    return (ages,)


@app.cell
def _(mo, tables):
    steps = tables.batches.select("step").unique().sort("step").collect()["step"].to_list()
    mo.stop(not steps, mo.md("No batch was formed yet; the charts below need one."))
    step_choice = mo.ui.dropdown({str(s): s for s in steps}, value=str(steps[-1]), label="step")
    mo.vstack([step_choice])
    return (step_choice,)


@app.cell
def _(alt, mo, spans_of_step, step_choice, tables):
    timeline = spans_of_step(tables, int(step_choice.value)).collect()
    timeline_chart = (
        alt.Chart(timeline)
        .mark_bar()
        .encode(
            x=alt.X("start_s:Q", title="seconds since the first one was created"),
            x2="end_s:Q",
            y=alt.Y("trajectory_id:N", sort=None, title=None),
            color=alt.Color("span:N"),
            tooltip=["trajectory_id", "domain", "span", "start_s", "end_s", "version_first"],
        )
        .properties(width=640)
    )
    mo.vstack([mo.md(f"## Spans of the trajectories of step {step_choice.value}"), timeline_chart])
    return (timeline,)


@app.cell
def _(mo, timeline):
    _ids = timeline["trajectory_id"].unique(maintain_order=True).to_list()
    trajectory_choice = mo.ui.dropdown(_ids, value=_ids[0], label="trajectory")
    mo.vstack([mo.md("## Transcript"), trajectory_choice])
    return (trajectory_choice,)


@app.cell
def _(as_text, mo, read_trajectory, render_trajectory, run, speller, trajectory_choice):
    transcript = as_text(
        render_trajectory(read_trajectory(run, trajectory_choice.value), speller(run.uri))
    )
    mo.plain_text(transcript)
    return (transcript,)


if __name__ == "__main__":
    app.run()
