"""Filters of trajectories as polars expressions over the columns of `trajectories`.

An expression has three uses: `filter(up, varied())` in a pipeline, where refused trajectories are
recorded with the reason and replaced; `run.trajectories.filter(varied())` on a stored run; and
`rollart query RUN --filter varied`. Filters of trajectories read one row. Filters of groups compare
the attempts of a group with `.over("group_id")` and give all of them the same answer; a pipeline
applies them once the group is complete, and evicts it whole. Sources of dynamic sampling: DAPO
(2503.14476) and ROLL Flash section 5.1.1.

The invariant: the answer is not true if a value is missing, such as the reward of an unscored
trajectory.
"""

import math
from collections.abc import Callable, Mapping

import polars as pl

from rollart_flow.calls import parse_call
from rollart_flow.errors import SettingsError
from rollart_flow.schema import row_schema
from rollart_flow.store.sql import condition
from rollart_flow.types import Outcome
from rollart_flow.validation import check_count, check_number


def complete() -> pl.Expr:
    """Accept episodes that the environment ended itself, without truncation or error."""
    return (pl.col("outcome") == str(Outcome.COMPLETED)) & pl.col("error").is_null()


def quality(low: float = -math.inf, high: float = math.inf, zero: bool = False) -> pl.Expr:
    """Accept rewards in [low, high], and 0 only with `zero`.

    Raises:
        SettingsError: low is not below high.
    """
    if not low < high:
        raise SettingsError(f"low={low!r}: expected a number below high={high!r}")
    if not isinstance(zero, bool):
        raise SettingsError(f"zero={zero!r}: expected True or False")
    reward = pl.col("reward")
    normal = reward.is_finite() & reward.is_between(low, high)
    return normal if zero else normal & (reward != 0)


def length(most_tokens: int, least_tokens: int = 1) -> pl.Expr:
    """Accept trajectories with this number of generated tokens, over all turns.

    Raises:
        SettingsError: a bound is no count, or the range is empty.
    """
    check_count("least_tokens", least_tokens, low=0)
    check_count("most_tokens", most_tokens, low=least_tokens)
    return pl.col("action_mask").list.sum().is_between(least_tokens, most_tokens)


def varied() -> pl.Expr:
    """Accept groups whose rewards differ; the advantages of the others are zero."""
    reward = pl.col("reward")
    return reward.max().over("group_id") > reward.min().over("group_id")


def balanced(low: float = 0.25, high: float = 0.75, above: float = 0.0) -> pl.Expr:
    """Accept groups in which the share of rewards above `above` is in [low, high].

    The share of every batch is then in that range too, so that neither positive nor negative
    rewards dominate the gradient.

    Raises:
        SettingsError: a share is not in [0, 1], or the range is empty.
    """
    check_number("low", low, low=0, high=1)
    check_number("high", high, low=low, high=1)
    return (pl.col("reward") > above).mean().over("group_id").is_between(low, high)


def diverse(most: float = 0.9, n: int = 3) -> pl.Expr:
    """Accept groups in which at most a share of the n-grams of actions is repeated (Echo Trap).

    Each attempt is the set of n-grams of the words of all its actions. With S the sum of their
    sizes, L the largest of them and U the size of their union, the share is (S - U) / (S - L): 0 if
    no two attempts have an n-gram in common, 1 if one attempt has all of them. An attempt of fewer
    than n words is one n-gram. A group of one attempt has a share of 0.

    Raises:
        SettingsError: the share is not in [0, 1], or n is no count.
    """
    check_number("most", most, low=0, high=1)
    check_count("n", n, low=1)
    grams = _n_grams(n)
    sizes = grams.list.len()
    total = sizes.sum().over("group_id").cast(pl.Float64)
    union = grams.list.explode().n_unique().over("group_id").cast(pl.Float64)
    repeated, could = total - union, total - sizes.max().over("group_id")
    return repeated <= most * could


def _n_grams(n: int) -> pl.Expr:
    """Return the distinct n-grams of an attempt's actions, as a list of texts."""
    actions = pl.col("turns").list.eval(pl.element().struct.field("action"))
    words = actions.list.join(" ").str.extract_all(r"\S+")
    following = [pl.element().shift(-place) for place in range(n)]
    grams = words.list.eval(pl.concat_str(following, separator=" ")).list.drop_nulls()
    short = pl.concat_list(words.list.join(" "))
    return pl.when(grams.list.len() > 0).then(grams).otherwise(short).list.unique()


FILTERS: Mapping[str, Callable[..., pl.Expr]] = {
    make.__name__: make for make in (complete, quality, length, varied, balanced, diverse)
}
"""Filters by name."""


def named_filter(text: str) -> pl.Expr:
    """Return the filter for a text such as "varied" or "length(256)".

    Raises:
        SettingsError: no filter has that name, or its arguments are wrong.
    """
    call = parse_call("filter", text, "varied or length(256)")
    make = call.of(FILTERS)
    try:
        return make(*call.arguments, **call.keywords)
    except TypeError as error:
        raise SettingsError(f"filter {text!r}: {error}") from None


def filter_of(text: str) -> pl.Expr:
    """Return the filter for a text: a name such as "varied", or a condition of SQL.

    A condition is what stands after WHERE in a query of `trajectories`: "reward > 0.5".

    Raises:
        SettingsError: the text is one name, of no filter and no column, or its arguments are wrong.
        QueryError: the text is neither.
    """
    try:
        name = parse_call("filter", text, "varied or length(256)").name
    except SettingsError:
        return condition(text)
    return condition(text) if name in row_schema("trajectories").names else named_filter(text)
