"""The pages of a step, a group, a trajectory and the events, in a browser."""

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from rollart_flow.store import Run, RunWriter
from rollart_flow.store.waits import NamedWait, begin_waits, write_waits
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.demo.texts import HOSTILE, LONG_LINE
from tests.runs import info
from tests.ui.browser import Browser, missing_programs, serving
from tests.ui.test_pages import NAMELESS

pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(bool(missing_programs()), reason="chromium and chromedriver are needed"),
]
REPAIR = "g00000011-00"
ODD = "g00000005-01'%252F%3Cb%3E"
"""An id with quotes, a percent sign and markup, as an address has it."""
PATHS = (
    "/run/demo/step/2", "/run/demo/group/g00000011?diff=1", f"/run/demo/trajectory/{REPAIR}",
    f"/run/demo/trajectory/{ODD}", "/run/demo/trajectory/g00000006-00", "/run/demo/events",
    f"/run/demo/trajectory/{REPAIR}/turn/2/token/430",
)  # fmt: skip


@pytest.fixture(scope="module")
def shared(demo_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with serving(RunCatalog([demo_run.uri])) as address:
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


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_breaks_no_rule_and_fits_its_window(
    browser: Browser, path: str, scheme: str
) -> None:
    browser.prefer(scheme)
    browser.open(path)
    browser.shoot(f"{path.strip('/').replace('/', '-').partition('?')[0]}-{scheme}")
    for width in (1300, 420):
        browser.driver.set_window_size(width, 900)
        room = "return document.documentElement.clientWidth - document.documentElement.scrollWidth"
        assert browser.run(room) >= 0
    browser.driver.set_window_size(1300, 1000)
    assert browser.all("main > .error") == []
    assert browser.complaints() == []


@pytest.mark.parametrize("path", PATHS)
def test_screen_readers_find_names_on_a_page(browser: Browser, path: str) -> None:
    browser.open(path)
    for closed in browser.all("main details:not([open]) > summary"):
        browser.run("arguments[0].click()", closed)
    nameless = browser.run(NAMELESS)
    assert nameless == dict.fromkeys(nameless, 0)
    drawn = "[...document.querySelectorAll('.chart svg[viewBox] > a, .chart .scroll > svg')]"
    assert browser.run(f"return {drawn}.filter((e) => !e.getAttribute('aria-label')).length") == 0


def test_a_bar_of_the_rewards_leads_to_its_rows(browser: Browser) -> None:
    browser.open("/run/demo/step/3")
    bar = browser.all("[data-view='step.rewards'] svg a")[-1]
    label = str(bar.get_attribute("aria-label"))
    browser.run("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", bar)
    browser.wait(
        lambda: "reward_from=" in browser.path and browser.texts(".filter a") == ["show all rows"]
    )
    rows = browser.texts("[data-view='step.rows'] tbody tr")
    assert label.startswith(f"{len(rows)} episodes")


def test_links_lead_from_a_step_to_a_token(browser: Browser) -> None:
    browser.open("/run/demo/step/3")
    browser.one("[data-view='step.groups'] tbody a[href$='g00000011']").click()
    browser.went("/run/demo/group/g00000011")
    browser.one(f"[data-view='group.attempts'] tbody a[href$='{REPAIR}']").click()
    browser.went(f"/run/demo/trajectory/{REPAIR}")
    assert "was trained on in step 3" in browser.texts(".story")[0]
    browser.one("#turn-1 .role a").click()
    browser.went(f"/run/demo/trajectory/{REPAIR}/turn/2")
    assert browser.texts(".conversation article .role a")[0] == "turn 2"
    browser.open(f"/run/demo/trajectory/{REPAIR}/turn/2/token/430")
    assert browser.one("#token-430").get_attribute("class") is not None
    assert browser.run("return document.querySelector('.token.here')?.id") == "token-430"


def test_arrow_keys_go_to_the_neighbours(browser: Browser) -> None:
    browser.open("/run/demo/step/3")
    browser.keys(Keys.ARROW_RIGHT)
    browser.went("/run/demo/step/4")
    browser.open(f"/run/demo/trajectory/{REPAIR}")
    browser.keys(Keys.ARROW_RIGHT)
    browser.went("/run/demo/trajectory/g00000011-01")


def test_keys_go_from_token_to_token_and_each_says_what_is_stored(browser: Browser) -> None:
    browser.open("/run/demo/trajectory/g00000005-00")
    browser.run("document.querySelector('.strip .token').focus()")
    assert "observed, mask false" in browser.one(".detail").text
    browser.keys(Keys.END + Keys.ARROW_LEFT)
    said = browser.one(".detail").text
    assert all(
        word in said for word in ("logprob -", "policy version 0", "trained on", "advantage")
    )
    assert browser.path == "/run/demo/trajectory/g00000005-00"
    browser.one("#token-metric").send_keys("version")
    browser.wait(lambda: "version 0" in browser.texts(".controls .token"))


def test_logprobs_of_a_replay_are_shown_and_colour_the_tokens(browser: Browser) -> None:
    browser.open(f"/run/demo/trajectory/{REPAIR}")
    assert "step 3 started" in browser.one("[data-view='trajectory.replayed'] p").text
    browser.one("#token-metric").send_keys("ratio")
    browser.wait(lambda: "over 1.1" in browser.texts(".controls .token"))
    assert {"up", "t0", "down"} <= {
        kind
        for each in browser.all(".strip .token")
        for kind in str(each.get_attribute("class")).split()
    }
    said = str(browser.all(".strip .token.up")[0].get_attribute("aria-label"))
    assert all(word in said for word in ("trainer's logprob -", "ratio 1.", "difference "))
    browser.shoot("ratio")
    browser.open("/run/demo/trajectory/g00000005-00")
    assert browser.texts("#token-metric option") == ["logprob", "advantage", "version", "mask"]
    assert browser.all("[data-view='trajectory.replayed']") == []


def test_logprobs_that_the_run_kept_are_shown_without_a_replay(browser: Browser) -> None:
    browser.open("/run/demo/trajectory/g00000017-00")
    metrics = browser.texts("#token-metric option")
    assert metrics[-2:] == ["trainer logprob", "ratio"]
    said = browser.one("[data-view='trajectory.replayed'] p").text
    assert "step 5 started" in said
    assert "replay" not in said
    sampled = str(browser.all(".strip .token:not(.seen)")[0].get_attribute("aria-label"))
    assert all(word in sampled for word in ("trainer's logprob -", "ratio "))


def test_hostile_text_is_shown_as_text(browser: Browser) -> None:
    for path in (f"/run/demo/trajectory/{ODD}", "/run/demo/group/g00000005", "/run/demo/events"):
        browser.open(path)
        assert browser.all("main script, main iframe, main img:not(.stored)") == []
        assert browser.run("return document.title").endswith("- rollart")
    browser.open(f"/run/demo/trajectory/{ODD}")
    shown = browser.texts(".message.assistant pre")[0]
    assert shown.startswith(HOSTILE[:40])
    assert not set(shown) & {"\x1b", "\u202e", "\x00", "\x07"}
    assert browser.all("main a[href^='javascript'], main a[href^='http']") == []


def test_a_long_text_is_sent_when_it_is_opened(browser: Browser) -> None:
    browser.open("/run/demo/trajectory/g00000009-00")
    assert len(browser.texts(".message.user pre")[0]) < 1000
    browser.one(".message.user button").click()
    browser.wait(lambda: len(browser.texts(".message.user pre")[0]) > len(LONG_LINE))


def test_images_are_those_of_the_run(browser: Browser) -> None:
    browser.open("/run/demo/trajectory/g00000006-00")
    sizes = "return [...document.querySelectorAll('img.stored')].map((e) => e.naturalWidth)"
    browser.wait(lambda: browser.run(sizes) == [48, 48])


def test_branches_are_a_tree_that_says_what_was_delivered(browser: Browser) -> None:
    browser.open(f"/run/demo/trajectory/{REPAIR}")
    nodes = browser.texts(".tree li li .mark")
    assert "not delivered: untrained_call" in nodes
    assert nodes.count("delivered, trained in step 3") == 2


def test_two_attempts_are_compared_word_by_word(browser: Browser) -> None:
    browser.open("/run/demo/group/g00000009?left=g00000009-01&right=g00000009-03&diff=1")
    assert any("script" in text for text in browser.texts(".beside del"))
    assert any("51 + 25" in text or "76" in text for text in browser.texts(".beside ins"))
    browser.one("#pick-diff").click()
    browser.wait(lambda: not browser.all(".beside del"))
    assert "diff" not in browser.path


def test_command_lines_are_shown_for_a_shell(browser: Browser, demo_run: Run) -> None:
    browser.open(f"/run/demo/trajectory/{ODD}")
    lines = browser.texts(".commands code")
    quoted = "'g00000005-01'\"'\"'%2F<b>'"
    assert lines[0] == f"rollart replay {demo_run.uri} --trajectory {quoted}"
    assert lines[1] == f"{lines[0]} --logprobs"
    assert lines[3].startswith(f"rollart fork {demo_run.uri} --step 1")
    assert browser.all("main form") == []


def test_events_are_filtered_and_lead_to_their_subjects(browser: Browser) -> None:
    browser.open("/run/demo/events")
    browser.one("#pick-kind").send_keys("evict")
    browser.went("/run/demo/events?kind=evict")
    browser.one("#pick-subject").send_keys("g00001008" + Keys.ENTER)
    browser.went("/run/demo/events?kind=evict&subject=g00001008")
    assert len(browser.all("[data-view='events.rows'] tbody tr")) == 4
    browser.one("[data-view='events.rows'] tbody a").click()
    browser.wait(lambda: browser.path.startswith("/run/demo/trajectory/g00001008-0"))
    browser.wait(lambda: "evicted with its group" in browser.texts(".story")[0])


def test_a_past_moment_shows_what_was_known_then(browser: Browser, demo_run: Run) -> None:
    name = "g00000008-01"
    seq = demo_run.trajectories.filter(trajectory_id=name).select("seq").collect().item()
    browser.open(f"/run/demo/trajectory/{name}?at={seq}")
    assert "no step has trained on it so far" in browser.texts(".story")[0]
    assert f"at={seq}" in str(browser.one(".ways a").get_attribute("href"))


def test_a_trajectory_that_is_not_there_is_named(browser: Browser) -> None:
    browser.open("/run/demo/trajectory/nobody")
    assert browser.texts("main .error") == ["this run has no trajectory nobody at this moment"]


def test_open_waits_of_a_running_run_are_listed(
    shared: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = tmp_path_factory.mktemp("running")
    writer = RunWriter.create(str(store / "live"), info("live"))
    begin_waits(writer.uri)
    write_waits(writer.uri, "buffer", [NamedWait("<b>get_batch</b>", 3.0)])
    with serving(RunCatalog([writer.uri])) as address:
        there = shared.address
        try:
            shared.address = address
            shared.open("/run/live/events")
            shared.wait(lambda: "<b>get_batch</b>" in shared.texts("main td"))
        finally:
            shared.address = there
    writer.close()
