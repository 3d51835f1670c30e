"""The node that learns from what is stored: trajectories of runs as a source of batches."""

import os
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import SettingsError
from rollart_flow.fields import Count, Name
from rollart_flow.pipeline.filters import check_expression
from rollart_flow.pipeline.keywords import Converted, part
from rollart_flow.pipeline.node import Node, node, variadic

if TYPE_CHECKING:
    from polars import Expr
else:
    Expr = Any

SELF = "self"
"""The run itself, as the name of a source."""


@node
class Stored(Node):
    """Draws batches from the stored trajectories of runs, with the row of each recorded.

    The rows are those that the runs have when the new run starts, of scored attempts that ended by
    themselves, unless `unscored` is set. Batches are a function of the seed, the step and these
    rows alone. With `stored("self")` within `mix`, they are the rows of the run itself up to the
    preceding step.

    Raises:
        PipelineError: no run is given, or an expression is wrong.
    """

    kind: ClassVar[str] = "stored"

    runs: Converted[Any, tuple[str, ...]] = part(kw_only=False, many=True)
    """Each the address of a run, its name in the store, or a `Run`; or "self"."""
    filter: Expr | None = part(default=None)
    """Polars expression of the columns of `trajectories`, which is true for the episodes to draw,
    as that of the node `filter`; attempts of a group are compared with `.over("group_id")`."""
    prefer: Expr | None = part(default=None)
    """Polars expression that is true for preferred episodes and false for rejected ones, among
    those that the filter and `best` leave; an episode for which it is null is not drawn."""
    best: Count | None = None
    """Number of episodes of each group to draw from, those with the highest rewards, the earliest
    of equal ones (rejection sampling); None: all."""
    rescored: str | None = None
    """Rescoring by `rollart rescore` whose rewards the rows have in place of their own; those
    without one are not drawn."""
    unscored: bool = False
    """Whether episodes without a reward are drawn too, such as imported conversations, for an
    algorithm that reads no rewards (`sft`, `distill`, and `dpo` with a `prefer` of its own)."""
    batch_size: Count = 64
    """Episodes of one training step; a pair counts as two. Within `mix`, its weights say it."""
    seed: int = 0
    """Seed of the order of episodes, which is another one in each pass over them."""
    split: Literal["train", "evaluation"] = "train"
    """Split of the trajectories."""
    exempt: bool = False
    """Whether the bound on the age of trajectories does not count these, within `mix`."""
    name: Name = "stored"
    """Name of the node."""

    def _check(self) -> None:
        if not self.runs:
            raise SettingsError("no run is given; give the name or the address of one")
        self._hold("runs", tuple(map(_address, self.runs)))
        if SELF in self.runs and len(self.runs) > 1:
            raise SettingsError(f"{SELF!r} stands alone; give the other runs a stored(...) apart")
        if SELF in self.runs and self.rescored is not None:
            raise SettingsError(f"{SELF!r} is a run that goes on, and has no rescoring")
        for key in ("filter", "prefer"):
            expression = getattr(self, key)
            if expression is not None:
                try:
                    check_expression(expression, scored=True)
                except SettingsError as error:
                    raise SettingsError(f"{key}: {error}") from error

    def check_serves(self, algorithm: Algorithm) -> None:
        """Refuse an algorithm that needs preferences or rewards which the source does not state.

        Raises:
            SettingsError: says what to change.
        """
        if algorithm.compares_groups and self.unscored:
            raise SettingsError(
                f"{algorithm.name} compares rewards, which {self.name} may lack; leave out unscored"
            )
        if algorithm.needs_preferences and self.prefer is None:
            raise SettingsError(
                f"{algorithm.name} learns from preferred and rejected episodes; say which are in "
                f"{self.name}, as in prefer=pl.col('reward') > 0"
            )


def _address(run: object) -> str:
    """Return the address or name of a run that was given as such, as a path, or as a `Run`."""
    found = getattr(run, "uri", run)
    if not isinstance(found, str | os.PathLike) or not os.fspath(found):
        raise SettingsError(f"takes names or addresses of runs, got {run!r}")
    return str(os.fspath(found))


stored = variadic(Stored, object)
