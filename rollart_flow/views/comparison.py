"""Views by which runs are compared: curves over steps, tokens or time, and settings that differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollart_flow.store import RunInfo
from rollart_flow.views.view import View

MOST_RUNS = 4
_ABSENT = "-"

_EVERY = {"every": "select 1 + max(step) // 300 from steps"}
_SO_FAR = (
    "with so_far as (select *, sum(tokens) over (order by step) as all_tokens, "
    "sum(step_s) over (order by step) as all_seconds from steps) "
)
"""The steps with the tokens and the seconds of all steps up to each."""

CURVES = View(
    "comparison.curves",
    "Curves",
    _SO_FAR + "select max(step) as step, max(all_tokens) as tokens, max(all_seconds) as seconds, "
    "avg(reward_mean) as reward, avg(loss) as loss, avg(grad_norm) as grad_norm, "
    "avg(entropy) as entropy, max(staleness_max) as staleness, avg(step_s) as step_s, "
    "sum(tokens) / sum(step_s) as tokens_per_s "
    "from so_far group by step // :every",
    lookups=_EVERY,
    order="step",
    rows=700,
)
SUCCESS = View(
    "comparison.success",
    "Success of evaluations",
    _SO_FAR + "select e.step as step, coalesce(s.all_tokens, 0) as tokens, "
    "coalesce(s.all_seconds, 0.0) as seconds, e.domain as domain, e.metric as metric, "
    "e.value as value from evaluations as e left join so_far as s on e.step = s.step "
    "where e.metric like 'success%' and e.step % :every = 0",
    lookups={"every": "select 1 + count(distinct step) // 200 from evaluations"},
    order="domain, metric, step",
    rows=4000,
)
FIGURES = View(
    "comparison.figures",
    "Figures",
    "select max(step) as steps, sum(trajectories) as trajectories, sum(tokens) as tokens, "
    "sum(step_s) as seconds, sum(tokens) / sum(step_s) as tokens_per_s, "
    "sum(train_s) / sum(step_s) as training, max(staleness_max) as staleness_max, "
    "max(lag_max) as lag_max from steps",
)

VIEWS = (CURVES, SUCCESS, FIGURES)


def differing_settings(runs: Sequence[RunInfo]) -> list[tuple[str, list[str]]]:
    """Return the settings in which runs differ: a dotted name, and its value in each as JSON.

    A value of a run without the setting is "-".
    """
    flat = [dict(_flat("", _settings(run))) for run in runs]
    names = sorted(set().union(*flat))
    rows = [(name, [settings.get(name, _ABSENT) for settings in flat]) for name in names]
    return [row for row in rows if len(set(row[1])) > 1]


def _settings(run: RunInfo) -> Mapping[str, Any]:
    own = {"pipeline": run.pipeline, "seed": run.seed, "versions": run.versions, **run.settings}
    if run.parent is not None:
        own["forked from"] = f"{run.parent.uri} step {run.parent.step}"
    return own


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), item)
    else:
        yield name, json.dumps(value, ensure_ascii=False, default=str)
