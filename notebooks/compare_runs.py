"""Compare two runs: the settings that differ, and their curves over steps, tokens or seconds.

    marimo edit notebooks/compare_runs.py -- --runs A,B
    python notebooks/compare_runs.py -- --runs A,B          runs every cell once

A and B are names in the store, folders or URIs; by default the two newest runs. The figures are
those of the page `/compare` of `rollart ui`.
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Compare two runs")


@app.cell
def _():
    import altair as alt
    import marimo as mo
    import polars as pl

    from rollart_flow import errors, open_run
    from rollart_flow.store import list_runs, store_uri
    from rollart_flow.views import comparison, view

    return alt, comparison, errors, list_runs, mo, open_run, pl, store_uri, view


@app.cell
def _(errors, list_runs, mo, open_run, store_uri):
    def _newest():
        runs = list_runs()
        if len(runs) < 2:
            raise errors.RunNotFoundError(f"fewer than two runs in {store_uri()}; name two: A,B")
        return [uri for uri, _ in runs[-2:]]

    chosen = [name for name in str(mo.cli_args().get("runs") or "").split(",") if name]
    runs = [open_run(name) for name in chosen or _newest()]
    names = [run.info.name for run in runs]
    mo.md("# " + " and ".join(f"`{name}`" for name in names))
    return names, runs


@app.cell
def _(comparison, names, pl, runs, view):
    readers = [view.ViewReader(run.snapshot()) for run in runs]

    def of_both(each):
        """Rows of a view of each run, one below the other, with the name of the run."""
        frames = [reader.read(each).frame for reader in readers]
        named = [
            frame.select(pl.lit(name).alias("run"), *frame.columns)
            for name, frame in zip(names, frames, strict=True)
        ]
        return pl.concat(named, how="vertical_relaxed")

    figures = of_both(comparison.FIGURES)
    curves = of_both(comparison.CURVES)
    successes = of_both(comparison.SUCCESS)
    return curves, figures, successes


@app.cell
def _(comparison, figures, mo, names, pl, runs):
    differing = pl.DataFrame(
        [(name, *values) for name, values in comparison.differing_settings([r.info for r in runs])],
        schema=["setting", *(f"{number}: {name}" for number, name in enumerate(names, start=1))],
        orient="row",
    )
    mo.vstack([mo.md("## Settings that differ"), differing, mo.md("## Figures"), figures])
    return (differing,)


@app.cell
def _(mo):
    along = mo.ui.dropdown(["step", "tokens", "seconds"], value="step", label="over")
    along  # noqa: B018  marimo shows the last expression
    return (along,)


@app.cell
def _(along, alt, curves, mo, successes):
    def _line(frame, column, **encoding):
        return (
            alt.Chart(frame)
            .mark_line(point=True)
            .encode(x=alt.X(f"{along.value}:Q"), y=f"{column}:Q", color="run:N", **encoding)
            .properties(width=320, height=200, title=column)
        )

    success_chart = _line(successes, "value", strokeDash="domain:N", detail="metric:N")
    columns = ("reward", "loss", "entropy", "staleness")
    charts = [success_chart.properties(title="success"), *(_line(curves, c) for c in columns)]
    mo.vstack([mo.md("## Curves"), alt.concat(*charts, columns=2)])
    return charts, success_chart


if __name__ == "__main__":
    app.run()
