"""Filters: nodes that drop trajectories by a polars expression, checked on an empty table.

This is the only part of a pipeline that loads polars, and only if the pipeline has a filter.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from rollart_flow.errors import SettingsError
from rollart_flow.fields import Name
from rollart_flow.pipeline.keywords import part
from rollart_flow.pipeline.node import node
from rollart_flow.pipeline.producing import Trajectories

if TYPE_CHECKING:
    from polars import Expr
else:
    Expr = Any

SCORES = ("reward", "reward_parts", "scored_at")
"""Columns of `trajectories` that are null until reward has run."""


@node
class Filter(Trajectories):
    """Keeps the trajectories for which a polars expression is true; each drop is recorded.

    The expression uses the columns of `trajectories` and gives one boolean a row; null drops the
    row. A filter may stand before reward, where the score columns are not known yet, or after it.
    An expression that compares the attempts of a group, with `.over("group_id")`, judges the
    members of each complete group: if it is not true for all of them, the whole group is evicted
    and another is admitted. `rollart_flow.algorithms.filters` has common filters.

    Raises:
        PipelineError: a column is unknown, the expression does not give a boolean for each row, or
            it compares attempts before reward or across groups.
    """

    kind: ClassVar[str] = "filter"
    takes: ClassVar[tuple[str, ...]] = ("rollout", "filter", "reward")

    up: Trajectories = part(kw_only=False)
    """The trajectories to filter."""
    expression: Expr = part(kw_only=False)
    """Polars expression of one boolean for each row of `trajectories`."""
    name: Name = "filter"
    """Name of the node."""

    def _expect(self, up: object) -> None:
        super()._expect(up)
        if isinstance(up, Trajectories) and up.drawn:
            raise SettingsError("filters no stored trajectories; give stored(...) the filter=")

    def _check(self) -> None:
        check_expression(self.expression, scored=self.up.scored)

    @property
    def scored(self) -> bool:
        return self.up.scored

    @property
    def of_groups(self) -> bool:
        """Whether the filter compares the attempts of a group, and so judges complete groups."""
        return compares_attempts(self.expression)


def check_expression(expression: Any, *, scored: bool) -> None:
    """Raise SettingsError unless an expression is one boolean per trajectory, within its group."""
    import polars as pl

    from rollart_flow.schema import row_schema

    if not isinstance(expression, pl.Expr):
        raise SettingsError(f"takes a polars expression, got {type(expression).__name__}")
    empty = pl.DataFrame(row_schema("trajectories").empty_table())
    for column in expression.meta.root_names():
        if column not in empty.columns:
            raise SettingsError(
                f"unknown column {column!r}; columns are {', '.join(empty.columns)}"
            )
        if column in SCORES and not scored:
            raise SettingsError(
                f"column {column!r} is not known before reward; put the filter after it"
            )
    try:
        result = empty.select(expression)
    except pl.exceptions.PolarsError as error:
        raise SettingsError(f"{str(error).splitlines()[0]}") from error
    if result.dtypes != [pl.Boolean] or result.height:
        raise SettingsError(
            f"the expression must give one boolean for each trajectory, "
            f"not {', '.join(str(dtype) for dtype in result.dtypes)}"
        )

    if compares_attempts(expression):
        _check_windows(str(expression), scored=scored)


_OVER = ".over("
_OVER_GROUP = ('.over([col("group_id")])', '.over(partition_by: [col("group_id")]')
"""Forms in which polars prints a window over groups, without and with an order."""


def compares_attempts(expression: Expr) -> bool:
    """Whether an expression looks at other attempts than the row's own, by `.over(...)`."""
    return _OVER in str(expression)


def _check_windows(said: str, *, scored: bool) -> None:
    if said.count(_OVER) != sum(map(said.count, _OVER_GROUP)):
        raise SettingsError('attempts are compared within their group only; use .over("group_id")')
    if not scored:
        raise SettingsError(
            "a group is complete once it is scored; put a filter that compares its "
            "attempts after reward"
        )


filter = Filter
