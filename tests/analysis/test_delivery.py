"""Delivered + reasons = sampled, over runs whose tokens are counted here one by one."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from rollart_flow.analysis.delivery import TokenAccount, token_account
from rollart_flow.store import Run
from rollart_flow.types import TRAINABLE, Outcome, Reason, Split, Trajectory
from tests.captured import captured, captured_run
from tests.runs import small_run
from tests.sessions import session_attempt

FATES: tuple[dict[str, Any], ...] = (
    {}, {}, {}, {"outcome": Outcome.TRUNCATED, "reason": Reason.TURN_LIMIT},
    {"outcome": Outcome.STALE, "reason": Reason.STALENESS_BOUND, "reward": None},
    {"outcome": Outcome.FAILED, "reward": None}, {"split": Split.EVALUATION}, {"reward": None},
)  # fmt: skip


QUERY = """
SELECT t.split, t.outcome, t.reason, t.reward IS NOT NULL AS scored,
       sum(e.answer_end - e.answer_start) AS sampled, sum(e.trained_tokens) AS acting
FROM exchanges AS e JOIN trajectories AS t ON e.trajectory_id = t.trajectory_id
GROUP BY t.split, t.outcome, t.reason, scored ORDER BY sampled DESC
"""


def attempts(seeds: range) -> list[tuple[Trajectory, ...]]:
    """Attempts of every fate."""
    random = Random(seeds.start)
    return [
        captured(f"t{seed}", seed, random.randint(1, 12), **random.choice(FATES)) for seed in seeds
    ]


def account_of(run: Run, episode_id: str) -> TokenAccount:
    """The account of one attempt."""
    account = token_account(run, episode_id)
    assert account is not None
    return account


def counted(made: list[tuple[Trajectory, ...]]) -> Counter[str]:
    """Sampled tokens by what became of them, token by token."""
    found: Counter[str] = Counter()
    for rows in made:
        for row in rows:
            trainable = row.outcome in TRAINABLE
            for version, acts in zip(row.token_versions, row.action_mask, strict=True):
                if version < 0:
                    continue
                if not acts:
                    found[str(row.reason)] += 1
                elif row.split is not Split.TRAIN:
                    found["evaluation"] += 1
                elif not trainable:
                    found[str(row.reason or row.outcome)] += 1
                else:
                    found["delivered" if row.reward is not None else "unscored"] += 1
    return found


@pytest.mark.parametrize("first", [0, 100])
def test_every_sampled_token_is_delivered_or_has_a_reason(first: int, tmp_path: Path) -> None:
    made = attempts(range(first, first + 100))
    account = token_account(captured_run(tmp_path, made))
    assert account is not None
    wanted = counted(made)
    assert account.sampled == wanted.total()
    assert account.delivered == wanted.pop("delivered")
    assert dict(account.reasons) == wanted
    assert {"failed", "staleness_bound", "evaluation", "unscored"} <= {*account.reasons}
    assert (account.attempts, account.missing) == (100, 0)
    assert account.calls == sum(len(rows[0].exchanges or ()) for rows in made)


def test_each_attempt_has_an_account(tmp_path: Path) -> None:
    made = attempts(range(300, 320))
    run = captured_run(tmp_path, made)
    for rows in made:
        wanted, each = counted([rows]), account_of(run, rows[0].episode_id)
        assert each.sampled == wanted.total()
        assert each.delivered == wanted.pop("delivered", 0)
        assert each.reasons == wanted
        assert (each.attempts, each.missing) == (1, 0)


def test_the_column_of_an_attempt_is_what_the_query_finds(tmp_path: Path) -> None:
    run = captured_run(tmp_path, attempts(range(400, 440)))
    rows = run.trajectories.collect()
    first = rows.filter(pl.col("branch") == 0)
    found = [account_of(run, episode_id).fraction for episode_id in first["episode_id"]]
    assert first["delivered_fraction"].to_list() == found
    assert {0.0, 1.0} < {*first["delivered_fraction"].to_list()}
    assert rows.filter(pl.col("branch") > 0)["delivered_fraction"].null_count() > 0
    assert rows.filter(pl.col("branch") > 0)["delivered_fraction"].drop_nulls().is_empty()


def test_the_documented_query_counts_withheld_tokens(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reading.md").read_text()
    made = attempts(range(500, 560))
    why = captured_run(tmp_path, made).sql(page.split('WHY = """')[1].split('"""')[0])
    by_reason = {row["why"]: row["sampled_tokens"] for row in why.to_dicts()}
    trained = [[row for row in rows if row.split is Split.TRAIN] for rows in made]
    wanted = counted([tuple(rows) for rows in trained])
    assert sum(by_reason.values()) == wanted.total()
    assert by_reason["untrained_call"] == wanted["untrained_call"] > 0


def test_a_token_that_no_row_has_is_missing(tmp_path: Path) -> None:
    rows = captured("t", 3, 8)
    assert len(rows) > 1
    lost = rows[-1]
    account = token_account(captured_run(tmp_path, [rows[:-1]]))
    assert account is not None
    assert account.missing == sum(version >= 0 for version in lost.token_versions) > 0
    assert f"in no row {account.missing} tokens" in str(account)


def test_a_token_that_two_rows_have_is_too_much(tmp_path: Path) -> None:
    rows = captured("t", 3, 8)
    twice = replace(rows[-1], trajectory_id="t.9", branch=9)
    account = token_account(captured_run(tmp_path, [(*rows, twice)]))
    assert account is not None
    assert account.missing == -sum(version >= 0 for version in twice.token_versions) < 0


def test_the_account_in_one_line(tmp_path: Path) -> None:
    row = captured("t", 0, 1)[0]
    assert row.exchanges is not None
    account = token_account(captured_run(tmp_path, [(row,)]))
    assert str(account) == "delivered 100.0% of 4 sampled tokens"
    failed = replace(row, outcome=Outcome.FAILED, reward=None)
    account = token_account(captured_run(tmp_path, [(failed,)], "b"))
    assert str(account) == "delivered 0.0% of 4 sampled tokens; failed 100.0%"
    by_hand = replace(row, reward=None)
    account = token_account(captured_run(tmp_path, [(by_hand,)], "d"))
    assert str(account) == "100.0% of 4 sampled tokens lack only a reward"
    account = token_account(captured_run(tmp_path, [(by_hand,), captured("u", 0, 1)], "e"))
    assert str(account) == "delivered 50.0% of 8 sampled tokens; unscored 50.0%"
    refused = replace(row.exchanges[0], trajectory_id=None, answer_start=None, answer_end=None)
    nothing = replace(row, token_ids=(), action_mask=(), logprobs=(), token_versions=())
    account = token_account(
        captured_run(tmp_path, [(replace(nothing, exchanges=(refused,)),)], "c")
    )
    assert account is not None
    assert (str(account), account.fraction) == ("nothing was sampled", None)


def test_a_run_without_captured_agents_has_no_account(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    assert token_account(run) is None


def test_the_query_of_the_documents_counts_alike(tmp_path: Path) -> None:
    run = captured_run(tmp_path, attempts(range(400, 430)))
    rows = run.sql(QUERY)
    account = token_account(run)
    assert account is not None
    assert rows["sampled"].sum() == account.sampled
    trainable = pl.col("outcome").is_in(["completed", "truncated"]), pl.col("split") == "train"
    fit = rows.filter(*trainable, pl.col("scored"))
    assert fit["acting"].sum() == account.delivered


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two hundred attempts that sessions of the gateway recorded."""
    random = Random(7)
    made = [session_attempt(f"s{seed}", seed, **random.choice(FATES)) for seed in range(200)]
    return captured_run(tmp_path_factory.mktemp("store"), made)


def test_two_hundred_sessions_deliver_their_tokens_or_say_why(sessions: Run) -> None:
    account = token_account(sessions)
    assert account is not None
    assert (account.attempts, account.missing) == (200, 0)
    some = [account_of(sessions, f"s{seed}").missing for seed in range(0, 200, 20)]
    assert some == [0] * 10
    assert account.delivered + sum(account.reasons.values()) == account.sampled
    assert {"unanswered", "untrained_call", "failed", "evaluation"} <= {*account.reasons}
    rows = sessions.sql(QUERY)
    assert rows["sampled"].sum() == account.sampled
    trainable = pl.col("outcome").is_in(["completed", "truncated"]), pl.col("split") == "train"
    assert rows.filter(*trainable, pl.col("scored"))["acting"].sum() == account.delivered


def test_the_tokens_of_each_call_are_those_of_its_row(sessions: Run) -> None:
    calls = sessions.exchanges.filter(pl.col("trajectory_id").is_not_null())
    length = pl.col("answer_end") - pl.col("answer_start")
    versions = pl.col("token_versions").list.slice(pl.col("answer_start"), length)
    mask = pl.col("action_mask").list.slice(pl.col("answer_start"), length)
    rows = calls.join(sessions.trajectories, on="trajectory_id").select(
        length=length,
        sampled=versions.list.len() - versions.list.count_matches(-1),
        trained=mask.list.sum(),
        trained_tokens="trained_tokens",
    )
    found = rows.collect()
    assert found.height == calls.collect().height > 1000
    assert (found["sampled"] == found["length"]).all()
    assert (found["trained"] == found["trained_tokens"]).all()
