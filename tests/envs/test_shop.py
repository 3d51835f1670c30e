"""The shop: its catalogue, its pages, its reward, its interfaces, and the known ways through it."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path
from random import Random
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from rollart_flow.envs import Shop
from rollart_flow.envs.shop.catalogue import catalogue
from rollart_flow.envs.shop.goals import Goal, Purchase, goal_of, scored
from rollart_flow.envs.shop.visit import ShopVisit
from rollart_flow.envs.shop.vocabulary import KINDS
from rollart_flow.envs.shop.web import ShopServer
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Action, Split, Task

SHOP = Shop()
TASKS = list(SHOP.tasks(Split.EVALUATION, 0))


def played(shop: Shop, task: Task, actions: Sequence[str | Action]) -> tuple[float, bool, object]:
    """Return (reward, whether the episode ended, success) of actions."""
    environment = shop.make()
    environment.reset(0, task.payload)
    reward, ended, success = 0.0, False, None
    for action in actions:
        assert not ended
        _, gained, ended, _, info = environment.step(action)
        reward, success = reward + gained, info["success"]
    return reward, ended, success


def visit(place: int = 0) -> ShopVisit:
    return ShopVisit(SHOP.catalogue, Goal.from_payload(TASKS[place].payload))


def test_a_thousand_products_are_made_from_a_seed_the_same_everywhere() -> None:
    products = SHOP.catalogue.products
    assert len({product.product_id for product in products}) == 1000
    assert {product.kind.name for product in products} == {kind.name for kind in KINDS}
    assert len({product.title for product in products}) > 900
    for product in products:
        assert product.kind.lowest * 100 - 1 <= product.cents <= product.kind.highest * 100
        assert all(len(values) >= 2 for values in product.options.values())
        assert set(product.attributes) == {it[6:-1] for it in product.features}
    program = "from rollart_flow.envs import Shop; print(Shop().catalogue.digest)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().strip() == SHOP.catalogue.digest
    assert catalogue(1000, 1).digest != SHOP.catalogue.digest


def test_the_search_finds_a_product_by_its_words() -> None:
    for product in SHOP.catalogue.products[:100]:
        assert product in SHOP.catalogue.search(product.title)[:5]
    best = SHOP.catalogue.search("waterproof hiking boots")[0]
    assert best.kind.name == "hiking boots"
    assert "waterproof" in best.attributes
    assert SHOP.catalogue.search("zyzzyva ...") == []
    assert SHOP.catalogue.search("the of and") == []


def test_trained_and_held_out_goals_are_of_other_products_and_fixed() -> None:
    held = list(SHOP.held_out(0))
    assert not {json.loads(task.payload)["product_id"] for task in held} & {
        json.loads(task.payload)["product_id"] for task in TASKS
    }
    assert len(held) + len(TASKS) == 3000
    assert 0.05 < len(held) / 3000 < 0.2
    assert list(SHOP.held_out(1)) == held
    first = list(islice(SHOP.tasks(Split.TRAIN, 1), 10))
    assert first == list(islice(SHOP.tasks(Split.TRAIN, 1), 10))
    assert first != list(islice(SHOP.tasks(Split.TRAIN, 2), 10))
    assert len({task.task_id for task in TASKS}) == len(TASKS)


@pytest.mark.parametrize("shop", [SHOP, Shop(tools=True), Shop(products=20, page_size=3)])
def test_the_known_way_earns_1_and_no_other_way_does(shop: Shop) -> None:
    for task in [*islice(shop.tasks(Split.EVALUATION, 0), 25), *islice(shop.held_out(0), 5)]:
        ways = shop.solutions(task)
        assert played(shop, task, ways["gold"]) == (1.0, True, True)
        assert played(shop, task, ways["noop"]) == (0.0, False, False)
        assert played(shop, task, ways["cheat:buy nothing"]) == (0.0, False, False)


@pytest.mark.parametrize("shop", [SHOP, Shop(products=20)])
def test_another_product_or_one_without_its_options_earns_less_than_1(shop: Shop) -> None:
    cheapest = min(shop.catalogue.products, key=lambda product: product.cents)
    for task in islice(shop.tasks(Split.EVALUATION, 0), 30):
        goal = Goal.from_payload(task.payload)
        for product in (cheapest, shop.catalogue.by_id[goal.product_id]):
            way = [f"search[{product.title}]", f"click[{product.product_id}]", "click[buy now]"]
            reward, ended, success = played(shop, task, way)
            assert ended
            assert reward < 1.0
            assert success is False


def test_the_reward_is_the_share_of_wishes_times_the_fit_of_the_type() -> None:
    product = SHOP.catalogue.products[0]
    goal = goal_of(product, 0)
    bought = scored(goal, [Purchase(product, goal.options)], SHOP.catalogue)
    assert bought == {"reward": 1, "type": 1, "attributes": 1, "options": 1, "price": 1}
    wishes = len(goal.attributes) + len(goal.options) + 1
    bare = scored(goal, [Purchase(product, {})], SHOP.catalogue)
    assert bare["reward"] == pytest.approx((len(goal.attributes) + 1) / wishes)
    dear = Goal(goal.instruction, goal.product_id, goal.attributes, goal.options, limit=1)
    costly = scored(dear, [Purchase(product, goal.options)], SHOP.catalogue)
    assert costly["reward"] == pytest.approx((wishes - 1) / wishes)
    kinds = {it.kind.name: it for it in SHOP.catalogue.products}
    of_category = next(
        it for it in kinds.values()
        if it.kind.category == product.kind.category and it.kind != product.kind
    )  # fmt: skip
    assert scored(goal, [Purchase(of_category, {})], SHOP.catalogue)["type"] == 0.5
    boots = Goal("", next(it.product_id for it in kinds.values() if it.kind.name == "hiking boots"),
                 ("leather",), {}, 500)  # fmt: skip
    assert scored(boots, [Purchase(kinds["running shoes"], {})], SHOP.catalogue)["type"] == 0.5
    assert scored(boots, [Purchase(kinds["kettle"], {})], SHOP.catalogue)["reward"] == 0.0


def test_buying_more_than_was_wanted_does_not_earn_1() -> None:
    at = visit()
    product = SHOP.catalogue.by_id[at.goal.product_id]
    for options in (at.goal.options, {}):
        assert not at.search(product.title)
        assert not at.click(product.product_id)
        for value in options.values():
            assert not at.click(value)
        assert not at.click("add to basket")
        assert not at.click("back to search")
    assert not at.click("basket")
    assert at.page().title == "Basket"
    assert len(at.page().lines) == 3
    assert not at.click("check out")
    assert at.bought is not None
    assert at.bought["reward"] < 1.0


def test_pages_lead_to_each_other() -> None:
    at = visit()
    assert at.page().searches
    assert at.page().clicks == ()
    at.search("cotton")
    assert at.page().title.startswith("Results for 'cotton', page 1 of ")
    first = at.page().lines
    at.click("Next Page")
    assert at.page().lines != first
    at.click("previous page")
    assert at.page().lines == first
    at.click(at.page().clicks[0])
    title = at.page().title
    at.click("features")
    assert "It is cotton." in at.page().lines
    at.click("back to product")
    at.click("description")
    assert title.split()[0] in at.page().lines[0]
    at.click("back to product")
    before = at.page().lines[0]
    dearest = [click for click in at.page().clicks if click.startswith("size")][-1]
    at.click(dearest)
    assert f"Chosen: {dearest.removeprefix('size: ')}" in " ".join(at.page().lines)
    assert at.page().lines[0] != before, "the option adds to the price"
    at.click("add to basket")
    at.click("empty basket")
    assert at.page().lines == ("Total $0.00",)
    assert at.invalid == 0


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("buy it", "Write search[words] or click[element]."),
        ("", "Write search[words] or click[element]."),
        ("search[]", "The search is empty."),
        ("click[buy now]", "This page has no element 'buy now' to click."),
        ("click[B00000]", "This page has no element 'B00000' to click."),
        ("click[" + "x" * 999 + "]", f"This page has no element {'x' * 60!r} to click."),
    ],
)
def test_what_cannot_be_done_is_answered_and_counted(action: str, answer: str) -> None:
    environment = SHOP.make()
    environment.reset(0, TASKS[0].payload)
    shown, reward, ended, _, info = environment.step(action)
    assert str(shown).splitlines()[0] == answer
    assert (reward, ended, info["invalid"]) == (0.0, False, 1)


def test_a_purchase_says_its_parts_as_verdicts() -> None:
    task = TASKS[0]
    environment = SHOP.make()
    environment.reset(0, task.payload)
    for action in SHOP.solutions(task)["gold"]:
        info = environment.step(action)[4]
    keys = [row["key"] for row in info["verdicts"]]  # type: ignore[attr-defined]
    assert keys == ["reward", "type", "attributes", "options", "price"]
    assert info["verifier"] == SHOP.digests(task).verifier
    assert Shop(seed=1).digests(task).verifier != info["verifier"]


def test_a_policy_that_converses_calls_tools() -> None:
    shop = Shop(tools=True)
    environment = shop.make()
    observation, _ = environment.reset(0, TASKS[0].payload)
    assert [message.role for message in observation] == ["system", "user"]  # type: ignore[union-attr]
    assert [tool.name for tool in environment.tools] == ["search", "click"]
    shown, reward, ended, _, info = environment.step(Action("I would rather talk."))
    assert "Call search or click" in str(shown)
    assert (reward, ended, info["invalid"]) == (0.0, False, 1)


def test_what_is_no_task_of_this_shop_is_refused() -> None:
    with pytest.raises(EnvironmentFailedError, match="the payload is no goal of a shop"):
        SHOP.make().reset(0, "{}")
    with pytest.raises(EnvironmentFailedError, match=r"has no product .*; use the settings"):
        Shop(products=20).make().reset(0, TASKS[0].payload)
    for tools in (False, True):
        with pytest.raises(EnvironmentFailedError, match="call reset first"):
            Shop(tools=tools).make().step(Action("") if tools else "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"products": 1}, "products"),
        ({"products": 10**6}, "at most 100000"),
        ({"goals": 0}, "goals"),
        ({"page_size": 0}, "page_size"),
        ({"held_out_fraction": 1.0}, "under 1"),
        ({"tools": True, "brief": True}, "either brief or tools"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Shop(**settings)  # type: ignore[arg-type]


def test_example_actions_are_well_formed_and_words_cover_the_pages() -> None:
    shop = Shop(products=20, brief=True)
    task = next(shop.tasks(Split.TRAIN, 0))
    observation, _ = shop.make().reset(0, task.payload)
    assert str(observation).endswith("\nsearch")
    assert set(str(observation).split()[:-2]) <= set(shop.words()) | set("SMLX")
    examples = {shop.example_action(task, Random(seed)) for seed in range(200)}
    assert all(it.startswith(("search[", "click[")) and it.endswith("]") for it in examples)
    assert "click[buy now]" in examples
    assert {product.product_id for product in shop.catalogue.products} <= set(shop.words())


def test_a_step_takes_less_than_a_millisecond() -> None:
    environment = SHOP.make()
    for task in TASKS[:20]:
        for action in ("search[" + json.loads(task.payload)["instruction"] + "]", "click[basket]"):
            taken = []
            for _ in range(7):
                environment.reset(0, task.payload)
                began = time.thread_time()
                environment.step(action)
                taken.append(time.thread_time() - began)
            assert min(taken) < 2e-3  # 0.4 ms on an idle machine


def fetched(address: str, data: dict[str, str] | None = None) -> str:
    body = None if data is None else urlencode(data).encode()
    with urlopen(Request(address, data=body), timeout=10) as answer:
        return str(answer.read().decode())


def test_the_same_shop_is_served_as_pages_without_javascript() -> None:
    before = threading.active_count()
    with ShopServer(SHOP) as server:
        address, other = server.open(TASKS[0].payload), server.open(TASKS[0].payload)
        assert address.startswith("http://127.0.0.1:")
        assert "<script" not in fetched(address)
        goal = Goal.from_payload(TASKS[0].payload)
        title = SHOP.catalogue.by_id[goal.product_id].title
        assert goal.product_id in fetched(f"{address}search?{urlencode({'q': title})}")
        fetched(f"{address}click", {"element": goal.product_id})
        for name, value in goal.options.items():
            fetched(f"{address}click", {"element": f"{name}: {value}"})
        assert "Thank you" in fetched(f"{address}click", {"element": "buy now"})
        bought = server.visit(address).bought
        assert bought is not None
        assert bought["reward"] == 1.0
        assert server.visit(other).bought is None
    assert threading.active_count() <= before


def test_every_text_of_a_page_is_escaped_and_what_is_wrong_has_a_status() -> None:
    hostile = "<script>alert(1)</script>\"'&"
    goal = Goal.from_payload(TASKS[0].payload)
    payload = Goal(hostile, goal.product_id, goal.attributes, goal.options, goal.limit).payload()
    with ShopServer(SHOP) as server:
        address = server.open(payload)
        page = fetched(address) + fetched(f"{address}search?{urlencode({'q': hostile})}")
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        for place, data, status in (
            ("click", {"element": hostile}, 400),
            ("buy", None, 404),
            ("../another/", None, 404),
            ("search", {"q": "red"}, 404),
            ("click", {"element": "x" * 5000}, 413),
        ):
            with pytest.raises(HTTPError) as raised:
                fetched(address + str(place), data)
            assert raised.value.code == status
            assert "<script" not in raised.value.read().decode()
            raised.value.close()
        connection = HTTPConnection("127.0.0.1", int(address.split(":")[2].split("/")[0]))
        connection.request("GET", "/", headers={"Host": "evil.example"})
        assert connection.getresponse().status == 421
        connection.close()
        assert server.visit(address).invalid == 1


def test_a_unix_socket_takes_the_place_of_the_port(tmp_path: Path) -> None:

    path = tmp_path / "shop.sock"
    with ShopServer(SHOP, path=path) as server:
        address = server.open(TASKS[0].payload)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            token = address.split("/")[3]
            client.sendall(f"GET /{token}/ HTTP/1.0\r\nHost: shop\r\n\r\n".encode())
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert b"200 OK" in answer
        assert b"Customer: " in answer
    with pytest.raises(SettingsError, match="cannot listen on"):
        ShopServer(SHOP, path=tmp_path / "no" / "folder.sock")
