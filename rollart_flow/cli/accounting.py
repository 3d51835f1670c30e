"""`rollart show RUN --accounting`: what a run spent, as tables for people or as JSON."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table

from rollart_flow.cli.output import console, duration, grid, print_json

if TYPE_CHECKING:
    from rollart_flow.analysis.accounting.account import Accounting
    from rollart_flow.store import Run

_BYTES = ("B", "kB", "MB", "GB", "TB")
_NUMBERS = (
    "attempts sampled share seen time generating environment score workers hours device-hours "
    "cost turns at-once busy calls bytes largest seconds longest"
)


def show_accounting(run: "Run", prices: Sequence[str], as_json: bool) -> None:
    """Print the accounting of a run.

    Args:
        run: the run.
        prices: texts such as "H800=2.5", which take the place of the pipeline's prices.
        as_json: whether to print JSON.

    Raises:
        SettingsError: a price is of another form.
    """
    from rollart_flow.analysis.accounting.account import account
    from rollart_flow.pipeline.prices import checked_prices, read_prices
    from rollart_flow.store.damage import reading

    known = {**checked_prices(run.info.settings.get("prices", {})), **read_prices(prices)}
    with reading(run.uri):
        found = account(run.snapshot(), known)
    if as_json:
        print_json(found.as_json())
        return
    console().print(render_accounting(found))


def render_accounting(found: "Accounting") -> RenderableType:
    """The accounting as tables with a heading each."""
    parts: list[RenderableType] = [_figures(found)]
    for heading, columns, frame, cells in (
        ("what became of the attempts", _FATES, found.fates, _fate),
        ("engine workers", _ENGINES, found.engines, _engine),
        ("stages under way at once", _STAGES, found.stages, _stage),
        ("between the stages", _TRANSFERS, found.transfers, _transfer),
        ("resource classes", _COSTS, found.costs, _cost),
    ):
        rows = (cells(row) for row in frame.iter_rows(named=True))
        parts += ["", heading, grid(columns, rows, right=_NUMBERS)]
    return Group(*parts)


def _figures(found: "Accounting") -> Table:
    table = Table.grid(padding=(0, 2))
    for name, said in _lines(found):
        table.add_row(name, said)
    return table


def _lines(found: "Accounting") -> Iterator[tuple[str, str]]:
    yield "active", f"{duration(found.active_s)} with attempts or steps under way"
    yield (
        "tokens",
        f"{found.sampled_per_s:,.1f} sampled/s for training, {found.trained_per_s:,.1f}/s of them "
        "trained on",
    )
    if (steps := found.steps) is not None:
        shares = sorted(steps.shares.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {share:.0%}" for name, share in shares)
        yield "steps", f"bound by {steps.bound}: {parts} of {duration(steps.seconds)}"
    for name, times in (("to score", found.time_to_score), ("to commit", found.time_to_commit)):
        if times is not None:
            median, late = map(_brief, times)
            yield name, f"{median} (median), {late} (p99) after the end of an attempt"
    if (slow := found.slow_represented) is not None:
        yield (
            "slow groups",
            f"{slow:.2f} of the share of all: trained share of the slowest quarter of groups",
        )
    if found.cost is not None:
        each = found.cost_per_million_trained
        rate = "" if each is None else f"; {each:,.4g} for a million sampled tokens trained on"
        yield "cost", f"{found.cost:,.4g}{rate}"
    if found.unpriced:
        first = found.unpriced[0]
        yield (
            "no price",
            f"{', '.join(found.unpriced)}; give one with --price {first}=PRICE, or in the "
            f'pipeline: Pipeline(..., prices={{"{first}": PRICE}})',
        )


_FATES = (
    "domain", "fate", "attempts", "sampled", "share", "seen", "time", "generating", "environment",
    "score",
)  # fmt: skip


def _fate(row: dict[str, Any]) -> list[str]:
    share = "-" if row["share"] is None else f"{row['share']:.1%}"
    tokens = f"{row['sampled']:,}", share, f"{row['seen']:,}"
    names = ("seconds", "generate_s", "environment_s", "score_s")
    times = (_brief(row[name]) for name in names)
    return [row["domain"], row["fate"], f"{row['attempts']:,}", *tokens, *times]


_ENGINES = ("hardware", "worker", "turns", "generating", "at-once", "busy")


def _engine(row: dict[str, Any]) -> list[str]:
    used = _brief(row["generate_s"]), f"{row['requests_at_once']:.1f}", f"{row['busy']:.0%}"
    return [row["hardware"], row["worker"], f"{row['turns']:,}", *used]


_STAGES = ("stage", "time", "at-once")


def _stage(row: dict[str, Any]) -> list[str]:
    return [row["stage"], _brief(row["seconds"]), f"{row['at_once']:.2f}"]


_TRANSFERS = ("path", "calls", "bytes", "largest", "seconds", "longest")


def _transfer(row: dict[str, Any]) -> list[str]:
    sizes = (_size(row[name]) for name in ("bytes_mean", "bytes_max"))
    times = (_brief(row[name]) for name in ("seconds_mean", "seconds_max"))
    return [row["path"], f"{row['calls']:,}", *sizes, *times]


_COSTS = ("class", "role", "workers", "hours", "device-hours", "cost")


def _cost(row: dict[str, Any]) -> list[str]:
    cost = "-" if row["cost"] is None else f"{row['cost']:,.4g}"
    hours = f"{row['hours']:.3g}", f"{row['device_hours']:.3g}"
    return [row["granted"], row["role"], str(row["workers"]), *hours, cost]


def _brief(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3g}ms" if seconds < 1 else duration(seconds)


def _size(size: float | None) -> str:
    if size is None:
        return "-"
    unit = 0
    while size >= 1000 and unit < len(_BYTES) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_BYTES[unit]}"
