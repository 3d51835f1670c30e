"""The shop as a text browser: actions such as `search[red jacket]`, or tools of the same names."""

import re
from typing import ClassVar, Protocol

from rollart_flow.envs.base import Environment, Info
from rollart_flow.envs.shop.catalogue import Catalogue
from rollart_flow.envs.shop.goals import Goal
from rollart_flow.envs.shop.visit import BUY, NEXT, PAY, ShopVisit
from rollart_flow.envs.tools import ToolEnvironment, tool
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.types import Action, Observation
from rollart_flow.types.branching import StepObservation
from rollart_flow.types.messages import system, user
from rollart_flow.types.verdicts import Verdict, VerdictKind

VERSION = "shop/1"
_ACTION = re.compile(r"(search|click)\s*\[([^\[\]]*)\]", re.IGNORECASE)
_HOW = (
    "You shop in a text browser. Write search[words] on a page with a search, or click[element] "
    "with one of the elements that can be clicked. Buy the product that the customer wants, with "
    "the right options."
)
_HOW_TOOLS = (
    "You shop for a customer. Search, open products, choose options, and buy the product that the "
    "customer wants."
)


def shown(visit: ShopVisit, problem: str = "") -> str:
    """Return the page of a visit as text, after what was wrong with the action before."""
    page = visit.page()
    searches = ("search[...]",) if page.searches else ()
    clicks = ", ".join((*searches, *page.clicks))
    lines = [problem] if problem else []
    lines += [page.title, *page.lines]
    if clicks:
        lines.append(f"You can use: {clicks}")
    return "\n".join(lines)


def shown_briefly(visit: ShopVisit, problem: str = "") -> str:
    """Return a page as what matters most of its elements, after a "?" where an action failed."""
    page, known = visit.page(), visit.catalogue.by_id
    parts = ["?"] if problem else []
    parts += ["search"] if page.searches else []
    for click in page.clicks:
        if click in known:
            parts.append(f"{click} {known[click].kind.name}")
        elif ": " in click or click in (BUY, PAY, NEXT):
            parts.append(click.rpartition(": ")[2])
    return " ".join(parts)


def wished_briefly(visit: ShopVisit) -> str:
    """Return the wishes of a customer as words alone."""
    goal = visit.goal
    kind = visit.catalogue.by_id[goal.product_id].kind.name
    return " ".join((*goal.attributes, kind, *goal.options.values(), str(goal.limit)))


def step_info(visit: ShopVisit, verifier: str) -> Info:
    """Return what the environment says of a visit."""
    if visit.bought is None:
        return {"success": False, "invalid": visit.invalid}
    verdicts = [
        Verdict(key=name, kind=VerdictKind.REWARD, value=value).as_json()
        for name, value in visit.bought.items()
    ]
    success = visit.bought["reward"] == 1.0
    return {
        "success": success, "invalid": visit.invalid, "verdicts": verdicts, "verifier": verifier,
    }  # fmt: skip


class ShopSettings(Protocol):
    """The settings of a domain that an environment reads."""

    @property
    def brief(self) -> bool: ...

    @property
    def verifier(self) -> str: ...

    @property
    def catalogue(self) -> Catalogue: ...

    @property
    def products(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def page_size(self) -> int: ...


class ShopEnvironment(Environment):
    """One visit of a customer. `info["success"]`: whether the purchase fits in everything."""

    inline: ClassVar[bool] = True
    version = VERSION

    def __init__(self, settings: ShopSettings) -> None:
        self._settings = settings
        self._visit: ShopVisit | None = None

    def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        """Open the shop for the goal of a task. Nothing is random, so no seed is used."""
        visit = self._visit = opened(self._settings, task)
        if self._settings.brief:
            return f"{wished_briefly(visit)}\n{shown_briefly(visit)}", {}
        return f"{_HOW}\n\nCustomer: {visit.goal.instruction}\n\n{shown(visit)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Search or click; what is neither is answered in text."""
        visit = self._visit
        if visit is None:
            raise EnvironmentFailedError("shop: step before reset; call reset first")
        match = _ACTION.search(action)
        if match is None:
            problem = visit.refuse("Write search[words] or click[element].")
        elif match[1].lower() == "search":
            problem = visit.search(match[2])
        else:
            problem = visit.click(match[2])
        info = step_info(visit, self._settings.verifier)
        reward = 0.0 if visit.bought is None else visit.bought["reward"]
        page = (shown_briefly if self._settings.brief else shown)(visit, problem)
        return page, reward, visit.bought is not None, False, info


class ShopToolEnvironment(ToolEnvironment):
    """The same visit for a policy that converses, with the tools `search` and `click`."""

    inline: ClassVar[bool] = True
    version = VERSION

    def __init__(self, settings: ShopSettings) -> None:
        self._settings = settings
        self._visit: ShopVisit | None = None

    def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        """Open the shop for the goal of a task."""
        visit = self._visit = opened(self._settings, task)
        return [system(_HOW_TOOLS), user(f"{visit.goal.instruction}\n\n{shown(visit)}")], {}

    def step(self, action: Action) -> tuple[StepObservation, float, bool, bool, Info]:
        """Run the calls of an action; a purchase ends the episode."""
        visit = self._open()
        observation, reward, terminated, truncated, _ = super().step(action)
        if visit.bought is not None:
            reward, terminated = visit.bought["reward"], True
        info = step_info(visit, self._settings.verifier)
        return observation, reward, terminated, truncated, info

    @tool
    def search(self, query: str) -> str:
        """Search the shop for products.

        Args:
            query: words of the product.
        """
        visit = self._open()
        return shown(visit, visit.search(query))

    @tool
    def click(self, element: str) -> str:
        """Click an element of the page, such as a product, an option or "buy now".

        Args:
            element: one of the elements that the page lists.
        """
        visit = self._open()
        return shown(visit, visit.click(element))

    def answer(self, text: str) -> tuple[StepObservation, float, bool, bool, Info]:
        """Ask for a call of a tool: a customer buys or leaves."""
        visit = self._open()
        problem = visit.refuse("Call search or click until the product is bought.")
        return [user(shown(visit, problem))], 0.0, False, False, {}

    def _open(self) -> ShopVisit:
        if self._visit is None:
            raise EnvironmentFailedError("shop: step before reset; call reset first")
        return self._visit


def opened(settings: ShopSettings, task: str) -> ShopVisit:
    """Return a new visit for the goal of a task.

    Raises:
        EnvironmentFailedError: the payload is no goal of this shop.
    """
    try:
        goal = Goal.from_payload(task)
    except ValueError as error:
        raise EnvironmentFailedError(f"shop: {error}") from error
    if goal.product_id not in settings.catalogue.by_id:
        raise EnvironmentFailedError(
            f"shop: the catalogue of {settings.products} products and seed {settings.seed} has no "
            f"product {goal.product_id!r}; use the settings that the task was made with"
        )
    return ShopVisit(settings.catalogue, goal, settings.page_size)
