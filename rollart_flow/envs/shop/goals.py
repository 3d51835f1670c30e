"""Goals of customers, and how well a purchase fits one.

The reward is that of WebShop (Yao et al., 2022, "WebShop: Towards Scalable Real-World Web
Interaction with Grounded Language Agents", section 3): the share of the wanted attributes, options
and price that the purchase has, times how well its type fits. WebShop reads the type from nouns of
the titles; here a product has a kind, whose words take the place of these nouns.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from random import Random

from rollart_flow.envs.shop.catalogue import Catalogue, Product

_PHRASES = (
    "Find me {what}{options}, under {limit} dollars.",
    "I am looking for {what}{options}. It must cost less than {limit} dollars.",
    "Buy {what}{options} for at most {limit} dollars.",
    "I need {what}{options}; my budget is {limit} dollars.",
)


@dataclass(frozen=True, slots=True)
class Goal:
    """The wishes of a customer, which `product_id` with `options` fulfils."""

    instruction: str
    product_id: str
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    limit: int
    """Highest price [dollars]."""

    def payload(self) -> str:
        """Return the goal as the payload of a task."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_payload(cls, payload: str) -> "Goal":
        """Return the goal of a payload.

        Raises:
            ValueError: the payload is no goal.
        """
        try:
            values = json.loads(payload)
            return cls(**{**values, "attributes": tuple(values["attributes"])})
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"the payload is no goal of a shop: {error}") from error


@dataclass(frozen=True, slots=True)
class Purchase:
    """A product with the options that were chosen."""

    product: Product
    options: Mapping[str, str]

    @property
    def cents(self) -> int:
        """Price of the product with these options [cents]."""
        return self.product.price(self.options)


def goal_of(product: Product, variant: int) -> Goal:
    """Return a goal that a product fulfils; each variant is another one."""
    random = Random(f"{product.product_id}/{variant}")
    attributes = tuple(random.sample(product.attributes, random.randint(1, 2)))
    options = {name: random.choice(sorted(values)) for name, values in product.options.items()}
    dollars = -(-product.price(options) // 100)
    limit = dollars + random.randint(1, max(2, dollars // 4))
    said = [f"{name} {value}" for name, value in options.items()]
    instruction = random.choice(_PHRASES).format(
        what=_with_article(f"{', '.join(attributes)} {product.kind.name}"),
        options="".join(f", {text}" for text in said),
        limit=limit,
    )
    return Goal(instruction, product.product_id, attributes, options, limit)


def _with_article(what: str) -> str:
    """Return a noun with its article, if it is no plural."""
    if what.endswith("s") and not what.endswith("ss"):
        return what
    return f"an {what}" if what[0] in "aeiou" else f"a {what}"


def scored(goal: Goal, purchases: list[Purchase], catalogue: Catalogue) -> dict[str, float]:
    """Return the reward of a purchase as "reward", and its parts.

    Of several purchases it is the mean, with the price of all of them; it is 1 only if each of them
    fits in everything.
    """
    wanted = catalogue.by_id[goal.product_id]
    affordable = float(sum(purchase.cents for purchase in purchases) <= goal.limit * 100)
    rows = [_scored(goal, purchase, wanted, affordable) for purchase in purchases]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _scored(goal: Goal, purchase: Purchase, wanted: Product, affordable: float) -> dict[str, float]:
    attributes = len({*goal.attributes} & {*purchase.product.attributes})
    options = len(goal.options.items() & purchase.options.items())
    kind = _type_match(purchase.product, wanted)
    share = (attributes + options + affordable) / (len(goal.attributes) + len(goal.options) + 1)
    return {
        "reward": kind * share,
        "type": kind,
        "attributes": attributes / len(goal.attributes),
        "options": options / max(1, len(goal.options)),
        "price": affordable,
    }


def _type_match(product: Product, wanted: Product) -> float:
    """Return 1 for the same kind, 0.5 for the same category, 0.1 for a common word, else 0."""
    if product.kind.name == wanted.kind.name:
        return 1.0
    if product.kind.category == wanted.kind.category:
        return 0.5
    return 0.1 if {*product.kind.name.split()} & {*wanted.kind.name.split()} else 0.0
