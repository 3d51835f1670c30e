"""The keywords that all recipes share, and the construction of an `Algorithm` from them.

A recipe is a function with a paper's defaults: `grpo(clip=0.2, correction=tis(cap=2.0))`. It takes
its own keywords and those of `Common`. The invariant: a keyword that a recipe does not have, or
that would be ignored, is refused.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypedDict

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Correction, Estimator, Loss, RatioTo
from rollart_flow.algorithms.losses.linearized import Linearized
from rollart_flow.algorithms.parts.aggregation import Aggregation, Decayed
from rollart_flow.algorithms.parts.critic import Critic
from rollart_flow.algorithms.parts.divergence import KLEstimator
from rollart_flow.algorithms.parts.teacher import teacher_folder
from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    import os

    from rollart_flow.models.policy import Policy


class WithoutTeacher(TypedDict, total=False):
    """Keywords of recipes but those of preferences; an omitted one has the default."""

    advantage: Estimator
    """Estimator of advantages from rewards, see `algorithms.advantages`."""
    aggregation: Aggregation
    """Mean over all action tokens (`token`), over trajectories (`sequence`), over domains
    (`domain`), or over trajectories of sums divided by `constant_tokens` (`constant`)."""
    constant_tokens: int
    """Divisor of the aggregation `constant` [tokens]."""
    correction: Correction | None
    """Factor in place of pi_old / mu, see `algorithms.corrections`; the ratio is then to pi_old."""
    critic: Critic | None
    """Value head, if the estimator needs one."""
    entropy: float
    """Factor of the entropy bonus; 0 gives none."""
    kl: float
    """Factor of the divergence from the reference policy; 0 needs no reference."""
    kl_estimator: KLEstimator
    """k1, k2 or k3, see `algorithms.parts.divergence`."""
    reference: int
    """Version of the policy that is the reference."""
    staleness: Decayed | None
    """Factor on the loss of a stale trajectory, see `Decayed`."""


class Common(WithoutTeacher, total=False):
    """Settings that every recipe without a teacher of its own takes."""

    teacher: "str | os.PathLike[str] | Policy | None"
    """Folder of another policy that is the reference, in place of a version of the run."""


class WithRatio(Common, total=False):
    """Keywords of every recipe whose loss has an importance ratio."""

    ratio_to: RatioTo | None
    """Denominator of the ratio, `behavior` or `old`; by default `old` with a correction, else
    `behavior`."""


class OfPreferences(TypedDict, total=False):
    """Keywords of every recipe that learns from preferences; other parts belong to its loss."""

    entropy: float
    """Factor of the entropy bonus; 0 gives none."""
    teacher: "str | os.PathLike[str] | Policy | None"
    """Folder of another policy that is the reference, in place of the one that the run starts
    from."""


def ratio_to(keywords: WithRatio) -> RatioTo:
    """Take the denominator of the ratio out of the keywords of a recipe."""
    return ratio_of(keywords.pop("ratio_to", None), keywords)


def ratio_of(given: RatioTo | None, common: Common) -> RatioTo:
    """Return the given denominator of a ratio; by default pi_old with a correction, else mu."""
    return given or ("behavior" if common.get("correction") is None else "old")


def compose(
    name: str,
    loss: Loss,
    common: Common,
    *,
    advantage: Estimator,
    aggregation: Aggregation = "token",
    critic: Critic | None = None,
) -> Algorithm:
    """Build the algorithm of a recipe from its defaults and the keywords that replace them.

    Raises:
        SettingsError: a keyword that no recipe has, a value out of its range, or a contradiction.
    """
    _check_keywords(name, common, Common)
    given: Common = {"advantage": advantage, "aggregation": aggregation, "critic": critic}
    given.update(common)
    return Algorithm(name, loss, **_with_folder(given))


def compose_preferences(name: str, loss: Estimator, common: OfPreferences) -> Algorithm:
    """Build the algorithm of a recipe whose loss an estimator computes (`losses.Linearized`).

    Raises:
        SettingsError: a keyword that these recipes do not have, or a value out of its range.
    """
    _check_keywords(name, common, OfPreferences)
    # The mean over trajectories of the sums over their tokens.
    given = _with_folder(common)
    return Algorithm(name, Linearized(), loss, "constant", constant_tokens=1, **given)


def _with_folder(given: Common | OfPreferences) -> dict[str, Any]:
    """Return the keywords of an `Algorithm`, which holds the folder of a teacher."""
    teacher = given.get("teacher")
    return {**given, "teacher": None if teacher is None else teacher_folder(teacher)}


def _check_keywords(name: str, given: Iterable[str], permitted: type) -> None:
    known = sorted(permitted.__annotations__)
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"common ones are {', '.join(known)}"
            raise SettingsError(f"{name} has no setting {key!r}; {hint}")
