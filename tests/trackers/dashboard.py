"""The Grafana dashboard of the overview, for the metrics of the Prometheus endpoint."""

from typing import Any

from rollart_flow.metrics.catalog import METRICS
from rollart_flow.metrics.overview import OVERVIEW
from rollart_flow.trackers.prometheus import prometheus_name

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24


def grafana_dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it: rows of sections, panels of charts."""
    panels: list[dict[str, Any]] = []
    y = 0
    for section, charts in OVERVIEW.items():
        place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        panels.append({"type": "row", "title": section, "gridPos": place, "panels": []})
        for number, (title, names) in enumerate(charts.items()):
            row, column = divmod(number, _COLUMNS // _WIDTH)
            place = {"x": column * _WIDTH, "y": y + 1 + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(title, names, place))
        y += 1 + _HEIGHT * -(-len(charts) // (_COLUMNS // _WIDTH))
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "title": "rollart_flow", "uid": "rollart-flow", "schemaVersion": 39, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"}, "panels": panels,
        "templating": {"list": [_SOURCE, _RUN]},
    }  # fmt: skip


_SOURCE = {"name": "source", "type": "datasource", "query": "prometheus"}
_RUN = {
    "name": "run", "type": "query", "query": "label_values(rollart_step, run)", "refresh": 2,
    "datasource": {"type": "prometheus", "uid": "${source}"},
}  # fmt: skip


def _panel(title: str, names: tuple[str, ...], place: dict[str, int]) -> dict[str, Any]:
    targets = []
    for ref, name in zip("ABCDEFGH", names, strict=False):
        metric = METRICS[name]
        labels = [f"{{{{{label}}}}}" for label in metric.label.split("/") if label]
        legend = " ".join([name, *labels])
        expression = f'{prometheus_name(metric)}{{run=~"$run"}}'
        targets.append({"refId": ref, "expr": expression, "legendFormat": legend})
    return {
        "type": "timeseries", "title": title, "gridPos": place, "targets": targets,
        "datasource": {"type": "prometheus", "uid": "${source}"},
    }  # fmt: skip
