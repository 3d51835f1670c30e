"""The endpoint serves every metric under its name, and every panel of the dashboard has one."""

import json
import re
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families

from rollart_flow.metrics.catalog import METRICS
from rollart_flow.metrics.figures import flat
from rollart_flow.metrics.reading import Cursor, RecordReader
from rollart_flow.store import Run
from rollart_flow.trackers.cursors import tracked_run
from rollart_flow.trackers.prometheus import PrometheusSink, PrometheusTracker, prometheus_name
from tests.trackers.dashboard import grafana_dashboard

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def test_the_endpoint_has_the_newest_values_on_loopback(finished_run: Run) -> None:
    sink = PrometheusTracker(port=0).opened(tracked_run(finished_run))
    assert isinstance(sink, PrometheusSink)
    newest: dict[str, float] = {}
    try:
        for record in RecordReader(finished_run).after(Cursor()):
            sink.write(record)
            newest |= flat(record.figures)
        with urlopen(f"http://127.0.0.1:{sink.port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        sink.close()
    samples = {
        (sample.name, *sorted(v for k, v in sample.labels.items() if k != "run")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["rollart_step",] == 4
    assert samples["rollart_train_loss",] == newest["train/loss"]
    assert samples["rollart_time_step",] == newest["time/step"]
    success = newest["eval/success/frozenlake"]
    assert samples["rollart_eval_score", "frozenlake", "success"] == success
    assert samples["rollart_eval_score_count", "frozenlake", "success_sampled"] == 2


def test_a_page_whose_name_was_rebound_to_this_machine_reads_nothing(finished_run: Run) -> None:
    sink = PrometheusTracker(port=0).opened(tracked_run(finished_run))
    assert isinstance(sink, PrometheusSink)
    address = f"http://127.0.0.1:{sink.port}/metrics"
    try:
        for host, expected in {"localhost:9400": 200, "evil.example": 421}.items():
            try:
                with urlopen(Request(address, headers={"Host": host})) as answer:
                    status = answer.status
            except HTTPError as error:
                with error:
                    status = error.code
            assert status == expected
    finally:
        sink.close()


def test_the_dashboard_is_the_overview_and_has_only_metrics_that_exist() -> None:
    assert json.loads(DASHBOARD.read_text()) == json.loads(json.dumps(grafana_dashboard()))
    served = {prometheus_name(metric) for metric in METRICS.values()}
    shown = {
        re.split(r"\{", target["expr"])[0]
        for panel in grafana_dashboard()["panels"]
        for target in panel.get("targets", ())
    }
    assert shown
    assert shown <= served
