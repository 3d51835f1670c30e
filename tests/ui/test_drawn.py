"""Rows that a step drew from another run, with links to that run where it is served."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rollart_flow.ui.app import ui_app
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.guard import Readers
from tests.runs import learning_runs
from tests.ui.browser import Browser, missing_programs, serving

DRAWN = "[data-view='step.drawn'] tbody"


def test_the_runs_that_a_run_learns_from_have_their_names_where_they_are_served(
    tmp_path: Path,
) -> None:
    other, learner = learning_runs(tmp_path)
    for runs, name in (((), "other"), ((learner.uri,), None)):
        app = ui_app(RunCatalog(runs, str(tmp_path)), Readers.at("127.0.0.1", None))
        with TestClient(app, base_url="http://localhost") as client:
            told = client.get("/api/run/learner/sources").json()
            assert told == {"sources": {other.uri: name}}
            page = client.get("/api/run/learner/page/step", params={"step": "1"}).json()
            assert len(page["views"]["step.drawn"]["rows"]) == 2
            assert page["views"]["step.rows"]["rows"] == []
            found = {"trajectory": "other/g-01"}
            page = client.get("/api/run/learner/page/trajectory", params=found).json()
            assert len(page["views"]["trajectory.drawn"]["rows"]) == 1


@pytest.mark.ui
@pytest.mark.skipif(bool(missing_programs()), reason="chromium and chromedriver are needed")
def test_a_step_links_to_what_it_drew(tmp_path: Path) -> None:
    other, learner = learning_runs(tmp_path)
    with serving(RunCatalog(store=str(tmp_path))) as address:
        browser = Browser(address, tmp_path)
        try:
            browser.open("/run/learner/step/1")
            browser.one(f"{DRAWN} a[href='/run/other/trajectory/g-01']").click()
            browser.went("/run/other/trajectory/g-01")
            browser.open("/run/learner/step/1")
            browser.one(f"{DRAWN} a[href='/run/learner/trajectory/own-00']").click()
            browser.went("/run/learner/trajectory/own-00")
            browser.open("/run/learner/trajectory/other%2Fg-01")
            assert browser.texts("[data-view='trajectory.drawn'] tbody a") == ["1", "other"]
            assert browser.complaints() == []
        finally:
            browser.close()
    with serving(RunCatalog([learner.uri])) as address:
        browser = Browser(address, tmp_path)
        try:
            browser.open("/run/learner/step/1")
            assert other.uri in " ".join(browser.texts(f"{DRAWN} td"))
            assert browser.texts(f"{DRAWN} a") == ["this run"]
        finally:
            browser.close()
