"""A run whose server answers wrongly now and then: attempts fail with a reason, the run goes on."""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import polars as pl

from rollart_flow import runner
from rollart_flow.pipeline import load_pipeline
from rollart_flow.store import open_run
from rollart_flow.types import Outcome, Reason
from tests.envs.foreign.openenv_server import Answer, counting_in_a_thread, refusal, shown

PIPELINE = """
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import OpenEnv
domain = OpenEnv({url!r}, action="n", max_turns=1)
trajectories = rollout(
    tasks(domain, group_size=4), Policy.tiny(hidden=32), max_tokens=2, step_timeout_s={limit},
    max_replacements=100,
)
steps = train(buffer(reward(trajectories), batch_size=8, alpha=1), Policy.tiny(hidden=32), grpo(),
    steps=3)
pipeline = Pipeline("bad-server", steps)
"""
GOOD = shown({"text": "over"}, 0.5, True)
WRONG: tuple[Answer, ...] = (
    "{",
    shown({}, float("nan"), True),
    None,
    refusal("EXECUTION_ERROR", "out of memory"),
    "x" * (17 << 20),
    "silence",
)


def test_each_wrong_answer_fails_its_attempt_and_the_run_ends_well(tmp_path: Path) -> None:
    answers = cycle([answer for wrong in WRONG for answer in (wrong, GOOD, GOOD)])
    step: dict[str, Callable[[], Answer]] = {"step": lambda: next(answers)}
    file = tmp_path / "bad_server.py"
    with counting_in_a_thread(step) as server:
        file.write_text(PIPELINE.format(url=server.url, limit=2.0))
        loaded = load_pipeline(file, {})
        run = open_run(runner.run(loaded, store=str(tmp_path), name="r", executor="inline").uri)
    assert run.steps.collect().height == 3
    rows = run.trajectories.collect()
    failed = rows.filter(pl.col("outcome").is_in([Outcome.FAILED, Outcome.TIMED_OUT]))
    reasons = set(failed["reason"])  # the run may end before the silence is found too long
    assert {Reason.ENVIRONMENT_ERROR} <= reasons
    assert reasons <= {Reason.ENVIRONMENT_ERROR, Reason.ENVIRONMENT_TIMEOUT}
    said = " | ".join(failed["error"])
    for part in ("no JSON object", "reward nan", "closed the connection", "EXECUTION_ERROR"):
        assert part in said
    assert "\n" not in said
    assert rows.filter(pl.col("outcome") == Outcome.COMPLETED).height >= 24
