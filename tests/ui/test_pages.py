"""The pages in a browser: links, keys, colors, time travel, and hostile text."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from rollart_flow.errors import StoreError
from rollart_flow.rows import trajectories_table
from rollart_flow.store import RunWriter
from rollart_flow.ui.catalog import RunCatalog
from tests import builders
from tests.runs import info, small_run
from tests.ui.browser import Browser, missing_programs, serving

pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(bool(missing_programs()), reason="chromium and chromedriver are needed"),
]
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}\u202e'
SHOWN = HOSTILE.replace("\u202e", "\u27e8202e\u27e9")
"""The same as text, in which the mark that turns its direction has a name."""
QUERY = "select%20*%20from%20trajectories"
RUN_PAGES = ("/runs", "/run/small", "/run/small/sql?q=" + QUERY, "/compare?runs=small,other")
NAMELESS = """
const all = (selector) => [...document.querySelectorAll(selector)];
const label = (e) => e.labels?.length || e.getAttribute("aria-label");
const named = (e) => label(e) || e.textContent.trim();
const titled = (e) => e.getAttribute("aria-labelledby").split(" ")
  .every((id) => document.getElementById(id)?.textContent);
return {
  fields: all("input, select, textarea").filter((e) => !label(e)).length,
  buttons: all("button, main a").filter((e) => !named(e)).length,
  tables: all("main table").filter((e) => !e.caption?.textContent).length,
  headings: all("thead th").filter((e) => e.scope !== "col").length,
  charts: all(".chart > svg").filter((e) => !titled(e)).length,
  ids: all("[id]").length - new Set(all("[id]").map((e) => e.id)).size,
};
"""
"""Numbers of elements of each kind that have no name, and of ids that are not unique."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    small_run(folder)
    small_run(folder, "other", steps=2)
    return folder


@pytest.fixture(scope="module")
def shared(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with serving(RunCatalog(store=str(store))) as address:
        browser = Browser(address, tmp_path_factory.mktemp("shots"))
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def browser(shared: Browser) -> Browser:
    shared.prefer("light")
    shared.complaints()
    return shared


def rows(browser: Browser, view: str) -> list[list[str]]:
    """Texts of the cells of a view's table."""
    script = (
        "return [...document.querySelectorAll(`[data-view='${arguments[0]}'] tbody tr`)]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return [list(row) for row in browser.run(script, view)]


@pytest.mark.parametrize("path", RUN_PAGES)
def test_a_page_breaks_no_rule_of_the_browser(browser: Browser, path: str) -> None:
    browser.open(path)
    browser.shoot(path.strip("/").replace("/", "-").partition("?")[0])
    assert browser.complaints() == []
    assert browser.all("main .error") == []


@pytest.mark.parametrize("path", RUN_PAGES)
def test_screen_readers_find_names_on_a_page(browser: Browser, path: str) -> None:
    browser.open(path)
    for fold in browser.all("main details:not([open]) > summary"):
        browser.run("arguments[0].click()", fold)
    assert len(browser.all("h1")) == 1
    assert len(browser.all("main")) == len(browser.all("header")) == 1
    nameless = browser.run(NAMELESS)
    assert nameless == dict.fromkeys(nameless, 0)


def test_a_point_of_a_curve_opens_its_step(browser: Browser) -> None:
    browser.open("/run/small")
    point = browser.one("[data-view='overview.loss'] svg a[aria-label*='step 3']")
    browser.run("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", point)
    browser.wait(lambda: browser.path == "/run/small/step/3")


def was_copied(browser: Browser, begins: str) -> bool:
    """Whether the clipboard has a text with a beginning."""
    script = "navigator.clipboard.readText().then(arguments[0], (e) => arguments[0](String(e)))"
    return str(browser.driver.execute_async_script(script)).startswith(begins)


def test_every_chart_has_a_table_and_a_query_that_can_be_copied(
    browser: Browser, store: Path
) -> None:
    browser.open("/run/small")
    for chart in browser.all(".chart"):
        name = chart.get_attribute("data-view")
        for part in ("table", "query"):
            browser.run("document.getElementById(arguments[0]).open = true", f"{part}-{name}")
    buttons = ".chart .query button:first-of-type"
    browser.wait(lambda: len(browser.all(buttons)) == len(browser.all(".chart")))
    assert rows(browser, "overview.loss")[0][:2] == ["1", "0.5"]
    browser.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    buttons = "[data-view='overview.loss'] .query button"
    begun = ("select min(step) as step, avg(loss)", f"rollart query small --store {store} 'select")
    for button, begins in zip(browser.all(buttons), begun, strict=True):
        browser.run("arguments[0].click()", button)
        browser.wait(partial(was_copied, browser, begins))


def test_a_chart_zooms_into_what_is_dragged_over(browser: Browser) -> None:
    browser.open("/run/small")
    chart = browser.one("[data-view='overview.loss'] > svg")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", chart)
    drag = ActionChains(browser.driver).move_to_element_with_offset(chart, -120, 10)
    drag.click_and_hold().move_by_offset(240, 0).release().perform()
    browser.one("[id='whole-overview.loss']")
    points = "[data-view='overview.loss'] svg a"
    browser.wait(lambda: len(browser.all(points)) == 2)
    browser.one("[id='whole-overview.loss']").click()
    browser.wait(lambda: len(browser.all(points)) == 4)


def test_a_series_is_hidden_by_its_name(browser: Browser) -> None:
    browser.open("/run/small")
    lines = "[data-view='overview.ages'] svg .line"
    before = len(browser.all(f"{lines}[d*='M']"))
    name = browser.one("[id='series-overview.ages-0']")
    assert name.get_attribute("aria-pressed") == "true"
    name.send_keys(Keys.ENTER)
    browser.wait(lambda: len(browser.all(f"{lines}[d*='M']")) == before - 1)
    assert browser.run("return document.activeElement.ariaPressed") == "false"
    browser.keys(Keys.ENTER)
    browser.wait(lambda: len(browser.all(f"{lines}[d*='M']")) == before)


def test_the_metric_of_the_success_chart_is_chosen(browser: Browser) -> None:
    browser.open("/run/small")
    points = "[data-view='overview.success'] svg a[aria-label*='step 4']"
    browser.one("[id='choose-overview.success']").send_keys(Keys.ARROW_DOWN)
    browser.wait(lambda: "93.8" in (browser.one(points).get_attribute("aria-label") or ""))


def test_the_server_sorts_a_table_by_the_clicked_heading(browser: Browser) -> None:
    browser.open("/run/small")
    heading = "[id='sort-overview.latest-loss']"
    for wanted, first in (("descending", "1"), ("ascending", "4"), (None, "4")):
        browser.run("const e = document.querySelector(arguments[0]); e.focus(); e.click()", heading)
        script = "return document.querySelector(arguments[0]).closest('th').ariaSort"
        browser.gives(script, heading, wanted)
        assert rows(browser, "overview.latest")[0][0] == first
    assert browser.run("return document.activeElement.id") == "sort-overview.latest-loss"


def test_keys_go_through_rows_open_search_and_help(browser: Browser) -> None:
    browser.open("/runs")
    names = [row[0] for row in rows(browser, "runs.figures")]
    browser.keys("jj")
    assert browser.run("return document.activeElement.cells[0].textContent") == names[1]
    browser.keys("k")
    browser.keys(Keys.ENTER)
    browser.went(f"/run/{names[0]}")
    browser.keys("/")
    browser.wait(lambda: browser.run("return document.activeElement.id") == "search")
    browser.keys("2" + Keys.ENTER)
    browser.wait(lambda: browser.path == f"/run/{names[0]}/step/2")
    browser.open("/runs")
    browser.keys("?")
    assert browser.one("dialog[open] h2").text == "Keys"
    browser.keys(Keys.ESCAPE)
    browser.wait(lambda: not browser.all("dialog[open]"))


def test_the_search_finds_the_beginning_of_an_id(browser: Browser) -> None:
    browser.open("/run/small")
    browser.one("#search").send_keys("s2-frozenlake-1" + Keys.ENTER)
    browser.wait(lambda: browser.path == "/run/small/trajectory/s2-frozenlake-1")


def test_the_slider_shows_the_run_as_it_was(browser: Browser) -> None:
    browser.open("/run/small")
    slider = browser.one("#time")
    assert slider.get_attribute("aria-valuetext") == "live"
    slider.send_keys(Keys.ARROW_LEFT * 3)
    browser.wait(lambda: [row[0] for row in rows(browser, "overview.latest")] == ["2", "1"])
    assert "?at=" in browser.path
    assert all("at=" in (a.get_attribute("href") or "") for a in browser.all("main tbody a"))
    browser.one("#live").click()
    browser.went("/run/small")
    assert len(rows(browser, "overview.latest")) == 4


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_follow_the_reader_until_chosen(browser: Browser, scheme: str) -> None:
    other = {"light": "dark", "dark": "light"}[scheme]
    lightness = "return Number(/\\d+/.exec(getComputedStyle(document.body).backgroundColor)[0])"
    browser.prefer(scheme)
    browser.open("/run/small")
    assert (browser.run(lightness) > 128) == (scheme == "light")
    browser.shoot(f"run-{scheme}")
    browser.one("#theme").send_keys(other)
    browser.wait(lambda: (browser.run(lightness) > 128) == (other == "light"))
    browser.open("/runs")
    assert (browser.run(lightness) > 128) == (other == "light")
    browser.one("#theme").send_keys("auto")
    browser.wait(lambda: (browser.run(lightness) > 128) == (scheme == "light"))


def test_text_of_a_model_is_shown_as_text(browser: Browser, store: Path) -> None:
    turn = builders.turn(HOSTILE, observation=HOSTILE)
    row = builders.trajectory(
        "g", trajectory_id=HOSTILE, task_id=HOSTILE, domain=HOSTILE, turns=(turn,)
    )
    writer = RunWriter.create(str(store / "hostile"), info("hostile"))
    writer.commit("trajectories", trajectories_table([row]))
    writer.close()
    for path in ("/run/hostile", f"/run/hostile/sql?q={QUERY}"):
        browser.open(path)
        assert any(SHOWN in text for text in browser.texts("main td"))
        assert browser.all("main img, main script, main iframe") == []
        assert browser.run("return window.hacked") is None
    browser.open("/run/small/sql?q=" + HOSTILE.replace("#", "%23"))
    assert browser.one("#q").get_attribute("value") == HOSTILE
    assert browser.run("return window.hacked") is None


def test_no_script_makes_elements_of_text(browser: Browser) -> None:
    browser.open("/runs")
    refused = browser.run(
        "try { document.body.innerHTML = '<b>x</b>'; return 'made'; } catch (e) { return e.name; }"
    )
    assert refused == "TypeError"


def test_a_page_follows_a_run_that_grows(browser: Browser, store: Path) -> None:
    writer = RunWriter.create(str(store / "growing"), info("growing"))
    writer.commit("steps", builders.step_row(1))
    browser.open("/run/growing")
    assert browser.texts("#status") == ["running"]
    assert len(rows(browser, "overview.latest")) == 1
    browser.run("document.getElementById('settings').open = true")
    writer.commit("steps", builders.step_row(2))
    browser.wait(lambda: len(rows(browser, "overview.latest")) == 2)
    assert browser.run("return document.getElementById('settings').open")
    writer.close()
    browser.wait(lambda: browser.texts("#status") == ["finished"])


def test_a_page_whose_run_was_removed_stays_and_says_so(browser: Browser, store: Path) -> None:
    writer = RunWriter.create(str(store / "removed"), info("removed"))
    writer.commit("steps", builders.step_row(1))
    browser.open("/run/removed")
    shutil.rmtree(store / "removed")
    browser.wait(lambda: browser.texts("#status") == ["not followed"])
    assert "no run at" in (browser.one("#status").get_attribute("title") or "")
    assert [row[0] for row in rows(browser, "overview.latest")] == ["1"]
    with pytest.raises(StoreError, match="cannot read"):
        writer.close()


def test_the_console_runs_a_query_and_tells_errors(browser: Browser) -> None:
    browser.open("/run/small/sql")
    field = browser.one("#q")
    field.clear()
    field.send_keys("select count(*) as n from steps" + Keys.CONTROL + Keys.ENTER)
    browser.wait(lambda: rows(browser, "sql") == [["4"]])
    field = browser.one("#q")
    field.clear()
    field.send_keys("drop table steps")
    browser.one("#run-query").click()
    browser.wait(lambda: browser.all("main .error"))
    assert "begins with" in browser.texts("main .error")[0]


def test_a_query_that_is_being_written_stays_while_a_run_grows(
    browser: Browser, store: Path
) -> None:
    writer = RunWriter.create(str(store / "asked"), info("asked"))
    writer.commit("steps", builders.step_row(1))
    browser.open("/run/asked/sql?q=select+step+from+steps+order+by+step")
    browser.one("#q").send_keys(" limit")
    writer.commit("steps", builders.step_row(2))
    browser.wait(lambda: rows(browser, "sql") == [["1"], ["2"]])
    browser.keys(" 1")
    written = browser.one("#q").get_attribute("value")
    assert written == "select step from steps order by step limit 1"
    writer.close()


def test_runs_that_are_chosen_are_compared(browser: Browser) -> None:
    browser.open("/compare?runs=small")
    browser.one("#run-other").click()
    browser.went("/compare?runs=small%2Cother&by=step")
    assert [row[0] for row in rows(browser, "comparison.figures")] == ["small", "other"]
    browser.one("#by-tokens").click()
    browser.wait(lambda: browser.path.endswith("by=tokens"))
    assert json.dumps(browser.texts(".chart .legend li")).count("other") > 0
