"""Checks of filter expressions, made on an empty table when the pipeline is built.

This is the only part of a pipeline that loads polars, and only if the pipeline has a filter.
"""

from typing import TYPE_CHECKING, Any

from rollart_flow.errors import PipelineError

if TYPE_CHECKING:
    import polars as pl

SCORES = ("reward", "reward_parts", "scored_at")
"""Columns of `trajectories` that are null until reward has run."""


def check_expression(node: str, expression: Any, *, scored: bool) -> None:
    """Refuse an expression that is not one boolean per trajectory, or looks beyond its group.

    Args:
        node: name of the filter, for the message.
        expression: the given expression; must be a `pl.Expr`.
        scored: whether reward stands before the filter.

    Raises:
        PipelineError: names the node and the fault: a column, the type, or the comparison.
    """
    import polars as pl

    from rollart_flow.schema import row_schema

    if not isinstance(expression, pl.Expr):
        raise PipelineError(f"{node}: takes a polars expression, got {type(expression).__name__}")
    empty = pl.DataFrame(row_schema("trajectories").empty_table())
    for column in expression.meta.root_names():
        if column not in empty.columns:
            raise PipelineError(
                f"{node}: unknown column {column!r}; columns are {', '.join(empty.columns)}"
            )
        if column in SCORES and not scored:
            raise PipelineError(
                f"{node}: column {column!r} is not known before reward; put the filter after it"
            )
    try:
        result = empty.select(expression)
    except pl.exceptions.PolarsError as error:
        raise PipelineError(f"{node}: {str(error).splitlines()[0]}") from error
    if result.dtypes != [pl.Boolean] or result.height:
        raise PipelineError(
            f"{node}: the expression must give one boolean for each trajectory, "
            f"not {', '.join(str(dtype) for dtype in result.dtypes)}"
        )

    if compares_attempts(expression):
        _check_windows(node, str(expression), scored=scored)


_OVER = ".over("
_OVER_GROUP = ('.over([col("group_id")])', '.over(partition_by: [col("group_id")]')
"""Forms in which polars prints a window over groups, without and with an order."""


def compares_attempts(expression: "pl.Expr") -> bool:
    """Whether an expression looks at other attempts than the row's own, by `.over(...)`."""
    return _OVER in str(expression)


def _check_windows(node: str, said: str, *, scored: bool) -> None:
    if said.count(_OVER) != sum(map(said.count, _OVER_GROUP)):
        raise PipelineError(
            f'{node}: attempts are compared within their group only; use .over("group_id")'
        )
    if not scored:
        raise PipelineError(
            f"{node}: a group is complete once it is scored; put a filter that compares its "
            "attempts after reward"
        )
