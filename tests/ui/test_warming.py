"""A server reads the first pages ahead, of the newest run that can be read."""

from pathlib import Path

from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.live_run import LiveRun
from rollart_flow.ui.warming import warm, warming
from tests.runs import small_run


def test_the_newest_run_is_read_beyond_one_that_is_damaged(tmp_path: Path) -> None:
    small_run(tmp_path, "older")
    small_run(tmp_path, "newer")
    damaged = small_run(tmp_path, "newest")
    log = Path(damaged.uri) / "tables" / "steps" / "_delta_log"
    for entry in log.iterdir():
        entry.write_text("torn")
    catalog = RunCatalog(store=str(tmp_path))
    warm(catalog)
    read = {name: live_run_is_read(catalog.open(name)) for name in ("older", "newer", "newest")}
    assert read["newer"]
    assert not read["newest"]


def live_run_is_read(live: LiveRun) -> bool:
    return live._newest is not None


def test_a_store_without_runs_is_nothing_to_read(tmp_path: Path) -> None:
    with warming(RunCatalog(store=str(tmp_path))):
        pass
