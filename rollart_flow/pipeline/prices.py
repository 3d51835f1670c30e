"""Prices of resource classes, by which the accounting of a run says what it cost."""

import math
from collections.abc import Iterable, Mapping

from rollart_flow.errors import SettingsError


def checked_prices(prices: Mapping[str, float]) -> dict[str, float]:
    """Return the prices of an hour of one device by resource class.

    Raises:
        SettingsError: a class without a name, or a price that is no finite number of at least 0.
    """
    if not isinstance(prices, Mapping):
        raise SettingsError(f'prices must be like {{"H800": 2.5}}, got {prices!r}')
    return {_class(name): _price(name, value) for name, value in prices.items()}


def read_prices(texts: Iterable[str]) -> dict[str, float]:
    """Return prices from texts such as "H800=2.5".

    Raises:
        SettingsError: a text is of another form.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            price = float(value) if equals else math.nan
        except ValueError:
            price = math.nan
        if math.isnan(price):
            raise SettingsError(f"a price is like H800=2.5, got {text!r}")
        found[name] = price
    return checked_prices(found)


def _class(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise SettingsError(f"prices are by resource class, got {name!r}")
    return name


def _price(name: str, value: object) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= float(value) < math.inf:  # type: ignore[arg-type]
        raise SettingsError(f"the price of {name} must be a number of at least 0, got {value!r}")
    return float(value)  # type: ignore[arg-type]
