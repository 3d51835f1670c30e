"""The domain of shopping tasks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from random import Random
from typing import ClassVar

from rollart_flow.envs.base import Domain, Environment
from rollart_flow.envs.shop.catalogue import Catalogue, Product, catalogue
from rollart_flow.envs.shop.environment import VERSION, ShopEnvironment, ShopToolEnvironment
from rollart_flow.envs.shop.goals import Goal, goal_of
from rollart_flow.envs.shop.visit import BASKET, BUY, PAY
from rollart_flow.errors import SettingsError
from rollart_flow.types import Action, Split, Task, ToolCall
from rollart_flow.types.verdicts import TaskDigests
from rollart_flow.validation import check_count

_MOST_PRODUCTS = 100_000
_WORD = re.compile("[A-Za-z0-9]{2,}")


@dataclass(frozen=True)
class Shop(Domain):
    """Buy what a customer wants in a shop of generated products (WebShop, Yao et al., 2022).

    A task is a sentence such as "Find me a waterproof jacket, colour red, size M, under 60
    dollars." The reward is the share of wishes that the purchase fulfils, times how well its type
    fits (`goals`); it is 1 only for a full match, which `info["success"]` says.

    Raises SettingsError if a setting is out of range; the message says which values there are.
    """

    name: ClassVar[str] = "shop"

    products: int = 1000
    """Number of products, from 2."""
    seed: int = 0
    """Seed of the catalogue."""
    goals: int = 3
    """Number of goals for each product."""
    page_size: int = 10
    """Products on a page of results."""
    tools: bool = False
    """Whether the policy converses and calls the tools `search` and `click`, rather than writing
    `search[...]` and `click[...]`."""
    brief: bool = False
    """Show wishes and pages as a few words, for a tiny policy; not with tools. Elements that are
    not shown, such as the description, can be clicked all the same."""
    held_out_fraction: float = 0.1
    """Share of the products whose goals training never sees, chosen by hash, so approximate."""
    max_turns: int = 20

    def __post_init__(self) -> None:
        check_count("shop.products", self.products, low=2)
        check_count("shop.goals", self.goals, low=1)
        check_count("shop.page_size", self.page_size, low=1)
        if self.products > _MOST_PRODUCTS:
            raise SettingsError(
                f"Shop: products is {self.products}; it must be at most {_MOST_PRODUCTS}"
            )
        if not 0.0 <= self.held_out_fraction < 1.0:
            raise SettingsError(
                f"Shop: held_out_fraction is {self.held_out_fraction}; "
                "it must be at least 0 and under 1"
            )
        if self.tools and self.brief:
            raise SettingsError("Shop: brief is for text; set either brief or tools")

    @property
    def environment(self) -> type[Environment]:  # type: ignore[override]  # a setting decides it
        """The class that a visit runs in."""
        return ShopToolEnvironment if self.tools else ShopEnvironment

    @property
    def catalogue(self) -> Catalogue:
        """The products, made once in a process."""
        return catalogue(self.products, self.seed)

    @property
    def verifier(self) -> str:
        """Digest of what judges a purchase."""
        return sha256(f"{VERSION}/{self.catalogue.digest}".encode()).hexdigest()

    def make(self) -> Environment:
        return ShopToolEnvironment(self) if self.tools else ShopEnvironment(self)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """The goals that are trained on: in a fresh order again and again, or once in order."""
        trained = self._split()[0]
        if split is not Split.TRAIN:
            yield from map(self._task, trained)
            return
        random = Random(f"{self.name}/{seed}")
        while True:
            yield from map(self._task, random.sample(trained, len(trained)))

    def held_out(self, seed: int) -> Iterator[Task]:
        """The goals of the products that training never sees, each once."""
        return map(self._task, self._split()[1])

    def solutions(self, task: Task) -> Mapping[str, Sequence[str | Action]]:
        """The way to the wanted product; a search alone; and purchases without a product.

        A purchase that fits in part is rewarded in part, so that it is no cheat.
        """
        goal = Goal.from_payload(task.payload)
        wanted = self.catalogue.by_id[goal.product_id]
        nothing = [("click", BUY), ("click", PAY), ("click", BASKET), ("click", PAY)]
        return {
            "gold": self._way(wanted, goal.options),
            "noop": self._actions([("search", goal.instruction)]),
            "cheat:buy nothing": self._actions([*nothing, ("search", wanted.title), *nothing]),
        }

    def digests(self, task: Task) -> TaskDigests:
        payload = sha256(f"{task.domain}/{task.payload}".encode()).hexdigest()
        return TaskDigests(task=payload, verifier=self.verifier)

    def example_action(self, task: Task, random: Random) -> str:
        """A search, a click of a product, an option or a purchase, whatever page is open."""
        wanted = self.catalogue.by_id[Goal.from_payload(task.payload).product_id]
        product = random.choice((wanted, random.choice(self.catalogue.products)))
        values = [value for options in product.options.values() for value in options]
        examples = (f"search[{product.kind.name}]", f"click[{product.product_id}]", f"click[{BUY}]")
        return random.choice((*examples, *examples, f"click[{random.choice(values)}]"))

    def words(self) -> tuple[str, ...]:
        """Return the words of pages and actions, for the tokenizer of a tiny policy."""
        found = {"search", "click", "buy", "now", "next", "page", "back", "basket", "Price"}
        for product in self.catalogue.products:
            values = [value for options in product.options.values() for value in options]
            text = " ".join((product.title, product.kind.name, *product.attributes, *values))
            found |= {product.product_id, *_WORD.findall(text)}
        return tuple(sorted(found))

    def _split(self) -> tuple[list[tuple[Product, int]], list[tuple[Product, int]]]:
        """Return (trained, held out): products with a variant of their goal."""
        found: tuple[list[tuple[Product, int]], ...] = ([], [])
        for place, product in enumerate(self.catalogue.products):
            digest = blake2b(product.product_id.encode(), digest_size=8).digest()
            held = place > 0 and int.from_bytes(digest) / 2**64 < self.held_out_fraction
            found[held].extend((product, variant) for variant in range(self.goals))
        return found[0], found[1]

    def _task(self, goal: tuple[Product, int]) -> Task:
        product, variant = goal
        task_id = f"{self.name}/{product.product_id}/{variant}"
        return Task(task_id, self.name, goal_of(product, variant).payload())

    def _way(self, product: Product, options: Mapping[str, str]) -> Sequence[str | Action]:
        """Return the actions that buy a product."""
        results = self.catalogue.search(product.title)
        pages = results.index(product) // self.page_size
        steps = [("search", product.title), *(("click", "next page"),) * pages]
        steps += [("click", product.product_id)]
        steps += [("click", f"{name}: {value}") for name, value in options.items()]
        return self._actions([*steps, ("click", BUY)])

    def _actions(self, steps: Sequence[tuple[str, str]]) -> Sequence[str | Action]:
        if not self.tools:
            return [f"{name}[{said}]" for name, said in steps]
        keys = {"search": "query", "click": "element"}
        return [
            Action("", None, (ToolCall(str(number), name, {keys[name]: said}),))
            for number, (name, said) in enumerate(steps)
        ]
