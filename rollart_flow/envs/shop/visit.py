"""One visit of a customer: the page that is open, the basket, and what was bought.

A visit is the same for every interface; `text` and `web` only show its pages. What cannot be done
is answered in a sentence and counted, and changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollart_flow.envs.shop.catalogue import Catalogue, Product
from rollart_flow.envs.shop.goals import Goal, Purchase, scored

_LONGEST_QUERY = 200
_MOST_IN_BASKET = 20
BACK, NEXT, PREVIOUS = "back to search", "next page", "previous page"
DESCRIPTION, FEATURES, PRODUCT = "description", "features", "back to product"
BUY, ADD, BASKET, PAY, EMPTY = "buy now", "add to basket", "basket", "check out", "empty basket"


@dataclass(frozen=True, slots=True)
class ShopPage:
    """One page, as the customer sees it."""

    title: str
    lines: tuple[str, ...]
    clicks: tuple[str, ...]
    """Elements that can be clicked."""
    searches: bool = False
    """Whether the page has a field for a search."""


@dataclass
class ShopVisit:
    """The state of a visit."""

    catalogue: Catalogue
    goal: Goal
    page_size: int = 10
    invalid: int = 0
    """Searches and clicks that could not be done."""
    bought: Mapping[str, float] | None = None
    """Reward and parts of the purchase; None before."""
    _view: str = "search"
    _query: str = ""
    _results: list[Product] = field(default_factory=list)
    _number: int = 0
    _product: Product | None = None
    _chosen: dict[str, str] = field(default_factory=dict)
    _basket: list[Purchase] = field(default_factory=list)

    def search(self, query: str) -> str:
        """Search from the page of the search; return what is wrong, or an empty text."""
        if not self.page().searches:
            return self._refused("This page has no search. Go back to search first.")
        if not query.strip():
            return self._refused("The search is empty.")
        self._query = " ".join(query.split())[:_LONGEST_QUERY]
        self._results = self.catalogue.search(self._query)
        self._view, self._number = "results", 0
        return ""

    def click(self, element: str) -> str:
        """Click an element of the page; return what is wrong, or an empty text."""
        wanted = " ".join(element.split()).casefold()
        clicks = self.page().clicks
        exact = [click for click in clicks if click.casefold() == wanted]
        values = [click for click in clicks if click.casefold().endswith(f": {wanted}")]
        found = exact or (values if len(values) == 1 else [])
        if not found:
            return self._refused(f"This page has no element {element.strip()[:60]!r} to click.")
        self._do(found[0])
        return ""

    def refuse(self, reason: str) -> str:
        """Count an action that is neither a search nor a click; return the reason."""
        return self._refused(reason)

    def page(self) -> ShopPage:
        """Return the page that is open."""
        pages = {
            "search": self._search_page,
            "results": self._results_page,
            "product": self._product_page,
            "description": self._description_page,
            "features": self._features_page,
            "basket": self._basket_page,
        }
        if self.bought is not None:
            return ShopPage("Thank you for your purchase", (), ())
        return pages[self._view]()

    def _refused(self, reason: str) -> str:
        self.invalid += 1
        return reason

    def _do(self, element: str) -> None:
        views = {BACK: "search", DESCRIPTION: DESCRIPTION, FEATURES: FEATURES, PRODUCT: "product"}
        if element in views:
            self._view = views[element]
        elif element in (NEXT, PREVIOUS):
            self._number += 1 if element == NEXT else -1
        elif element.startswith(BASKET):
            self._view = "basket"
        elif element in self.catalogue.by_id:
            self._product, self._chosen, self._view = self.catalogue.by_id[element], {}, "product"
        elif element == EMPTY:
            self._basket = []
        elif element == PAY:
            self.bought = scored(self.goal, self._basket, self.catalogue)
        elif element in (BUY, ADD):
            self._take(element)
        else:
            name, _, value = element.partition(": ")
            self._chosen[name] = value

    def _take(self, element: str) -> None:
        assert self._product is not None
        purchase = Purchase(self._product, dict(self._chosen))
        if element == BUY:
            self.bought = scored(self.goal, [purchase], self.catalogue)
        else:
            self._basket.append(purchase)
            self._view = "basket"

    def _search_page(self) -> ShopPage:
        return ShopPage("Search", (), self._basket_click(), searches=True)

    def _results_page(self) -> ShopPage:
        pages = max(1, -(-len(self._results) // self.page_size))
        start = self._number * self.page_size
        shown = self._results[start : start + self.page_size]
        lines = tuple(f"{it.product_id} {it.title}, {_dollars(it.cents)}" for it in shown)
        moves = (NEXT,) * (self._number + 1 < pages) + (PREVIOUS,) * (self._number > 0)
        title = f"Results for {self._query!r}, page {self._number + 1} of {pages}"
        clicks = (*(it.product_id for it in shown), *moves, BACK, *self._basket_click())
        return ShopPage(title, lines or ("Nothing was found.",), clicks)

    def _product_page(self) -> ShopPage:
        product = self._open()
        lines = [f"Price {_dollars(product.price(self._chosen))}, category {product.kind.category}"]
        clicks = []
        for name, values in product.options.items():
            extra = [f"{it} (+{_dollars(cents)})" if cents else it for it, cents in values.items()]
            chosen = self._chosen.get(name, "none")
            lines.append(f"{name}: {', '.join(extra)}. Chosen: {chosen}")
            clicks += [f"{name}: {value}" for value in values]
        room = len(self._basket) < _MOST_IN_BASKET
        buys = (DESCRIPTION, FEATURES, BUY, *((ADD,) if room else ()), BACK)
        return ShopPage(product.title, tuple(lines), (*clicks, *buys, *self._basket_click()))

    def _description_page(self) -> ShopPage:
        product = self._open()
        return ShopPage(product.title, (product.description,), (PRODUCT, BACK))

    def _features_page(self) -> ShopPage:
        product = self._open()
        return ShopPage(product.title, product.features, (PRODUCT, BACK))

    def _basket_page(self) -> ShopPage:
        lines = [
            f"{it.product.title} ({', '.join(it.options.values()) or 'no options'}), "
            f"{_dollars(it.cents)}"
            for it in self._basket
        ]
        total = sum(it.cents for it in self._basket)
        moves = (PAY, EMPTY) if self._basket else ()
        return ShopPage("Basket", (*lines, f"Total {_dollars(total)}"), (*moves, BACK))

    def _basket_click(self) -> tuple[str, ...]:
        return (BASKET,) if self._basket else ()

    def _open(self) -> Product:
        assert self._product is not None
        return self._product


def _dollars(cents: int) -> str:
    return f"${cents // 100}.{cents % 100:02d}"
