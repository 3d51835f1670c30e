"""Trajectories that a step drew from another stored run, or earlier ones of the run itself."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rollart_flow.cli.transcript import find_among, own_ids, read_trajectory
from rollart_flow.errors import StoreError

if TYPE_CHECKING:
    import polars as pl

    from rollart_flow.store import Run


def read_shown(run: "Run", beginning: str) -> dict[str, Any]:
    """Return a trajectory of a run as `read_trajectory` does, or one that was drawn by the run.

    A drawn trajectory is that of its own run, with `source`: the run, seq and table version that it
    was drawn from; `steps` are those that drew it, each with the rescoring (`rescored`) whose
    rewards it trained with, or null.

    Args:
        run: the run.
        beginning: beginning of the id; that of a drawn trajectory has the name of its source and a
            slash before it.

    Raises:
        SettingsError: no id begins so, or several do.
        StoreError: the run that it was drawn from is gone, or is another one by now.
    """
    import polars as pl

    own = own_ids(run, beginning)
    drawn = run.batches.filter(pl.col("source_seq").is_not_null())
    ids = pl.col("trajectory_id")
    if not own:
        fitting = drawn.filter(ids.str.starts_with(beginning)).select(ids.unique().sort())
        if names := fitting.collect()["trajectory_id"].to_list():
            name = find_among(names, beginning, run)
            return _read(run, drawn.filter(ids == name).sort("step").collect())
    return read_trajectory(run, find_among(own, beginning, run))


def _read(run: "Run", drawn: "pl.DataFrame") -> dict[str, Any]:
    """Read a trajectory from the run that it was drawn from, by its rows of `batches`."""
    import polars as pl

    from rollart_flow.store import Run as StoredRun
    from rollart_flow.store.pins import PinnedRun, PinnedTables, another

    first = drawn.row(0, named=True)
    source = PinnedRun(first["source_run"] or run.uri, first["source_version"], first["source_seq"])
    row = PinnedTables(source).rows([source.seq])
    if another(row, drawn.head(1).select("source_seq", "trajectory_id")) is not None:
        raise StoreError(
            f"the row of seq {source.seq} of the run at {source.run} is not "
            f"{first['trajectory_id']}; another run has taken its place"
        )
    found = read_trajectory(StoredRun(source.run), row["trajectory_id"].item())
    columns = "step", "staleness", "lag", pl.col("source_rescored").alias("rescored")
    steps = drawn.select(*columns).to_dicts()
    return {**found, "steps": steps, "source": asdict(source)}
