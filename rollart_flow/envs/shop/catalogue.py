"""The products of a shop, a function of their number and a seed.

Invariant: the same number and seed give the same products in every process and on every machine;
`VERSION` changes with the way they are made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from random import Random

from rollart_flow.envs.shop.search import SearchIndex
from rollart_flow.envs.shop.vocabulary import BRANDS, KINDS, OPTIONS, SERIES, ProductKind

VERSION = "1"
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"


@dataclass(frozen=True, slots=True)
class Product:
    """A product on sale."""

    product_id: str
    """Six letters and digits."""
    title: str
    brand: str
    kind: ProductKind
    cents: int
    """Price without options [cents]."""
    attributes: tuple[str, ...]
    """Attributes; the title names one of them, the description one, the features all."""
    options: Mapping[str, Mapping[str, int]]
    """Values by kind of option, each with the amount that it adds to the price [cents]."""
    description: str
    features: tuple[str, ...]

    def price(self, chosen: Mapping[str, str]) -> int:
        """Return the price with chosen options [cents]."""
        return self.cents + sum(self.options[name][value] for name, value in chosen.items())


class Catalogue:
    """All products, in a fixed order, and the index of their texts."""

    def __init__(self, products: tuple[Product, ...]) -> None:
        self.products = products
        self.by_id = {product.product_id: product for product in products}
        self._index = SearchIndex([_searched(product) for product in products])

    def search(self, query: str) -> list[Product]:
        """Return the products that have a word of a query, the best first."""
        return [self.products[place] for place in self._index.search(query)]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all products."""
        return sha256(repr((VERSION, self.products)).encode()).hexdigest()


@cache
def catalogue(products: int, seed: int) -> Catalogue:
    """Return the catalogue of a number of products and a seed; it is made once in a process."""
    random = Random(f"shop/{VERSION}/{products}/{seed}")
    identities = set[str]()
    while len(identities) < products:
        identities.add("B" + "".join(random.choices(_LETTERS, k=5)))
    found = [
        _product(identity, KINDS[place % len(KINDS)], random)
        for place, identity in enumerate(sorted(identities))
    ]
    random.shuffle(found)
    return Catalogue(tuple(found))


def _product(identity: str, kind: ProductKind, random: Random) -> Product:
    brand, series = random.choice(BRANDS), random.choice(SERIES)
    attributes = tuple(random.sample(kind.attributes, random.randint(3, 5)))
    shown, described = attributes[0], attributes[1]
    options = {name: _values(name, random) for name in kind.options}
    used = random.choice(("every day", "travel", "a gift", "busy weeks", "long use", "small flats"))
    return Product(
        product_id=identity,
        title=f"{brand} {series} {kind.name.title()}, {shown}",
        brand=brand,
        kind=kind,
        cents=random.randint(kind.lowest * 100, kind.highest * 100) // 10 * 10 - 1,
        attributes=attributes,
        options=options,
        description=(
            f"The {series} {kind.name} of {brand} is made for {used}. It is {described}, and comes "
            f"in {len(options[kind.options[0]])} versions of {kind.options[0]}."
        ),
        features=tuple(
            f"It is {attribute}." for attribute in random.sample(attributes, len(attributes))
        ),
    )


def _values(name: str, random: Random) -> dict[str, int]:
    """Return some values of an option with what each adds to the price [cents]."""
    known = OPTIONS[name]
    chosen = sorted(random.sample(range(len(known)), random.randint(2, min(5, len(known)))))
    step = 0 if name in ("colour", "scent", "shoe size") else random.choice((100, 250, 400))
    return {known[place]: step * number for number, place in enumerate(chosen)}


def _searched(product: Product) -> str:
    """Return the text that the search reads: everything but the price."""
    values = [value for options in product.options.values() for value in options]
    parts = (product.title, product.title, product.description, *product.features, *values)
    return " ".join((*parts, product.kind.category))
