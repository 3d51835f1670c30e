"""Checks a filter's expression when the pipeline is built, on an empty table of the schema.

This is the only part of a pipeline that loads polars, and only where a filter stands.
"""

from typing import Any

from rollart_flow.errors import PipelineError

SCORES = ("reward", "reward_parts", "scored_at")
"""Columns of `trajectories` that are null until reward has run."""


def check_expression(node: str, expression: Any, *, scored: bool) -> None:
    """Refuse what is not one boolean for each trajectory.

    Args:
        node: name of the filter, for the message.
        expression: what was given as `pl.Expr`.
        scored: whether reward stands before the filter.

    Raises:
        PipelineError: names the node and the column or the type that is wrong.
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
