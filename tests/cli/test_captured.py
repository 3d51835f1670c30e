"""`rollart show` of a run with captured agents: the tokens' account, branches and calls."""

import json

import pytest

from rollart_flow.analysis.delivery import token_account
from tests.captured import add_tokenizer, captured, captured_run
from tests.cli.shell import refused, rollart
from tests.sessions import session_attempt

SEEDS = range(500, 520)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of twenty attempts."""
    made = (captured(f"t{seed}", seed, 8) for seed in SEEDS)
    return captured_run(tmp_path_factory.mktemp("store"), made).uri


def test_a_run_shows_what_became_of_its_sampled_tokens(uri: str) -> None:
    from rollart_flow.store import open_run

    shown = " ".join(rollart("show", uri).out.split())
    account = token_account(open_run(uri))
    assert f"captured 20 attempts, 160 calls; {account}" in shown
    assert 0 < json.loads(rollart("show", uri, "--json").out)["captured"]["fraction"] < 1


def test_an_attempt_shows_its_branches_and_calls(uri: str) -> None:
    rows = captured("t501", 501, 8)
    assert len(rows) > 1
    found = json.loads(rollart("show", uri, "--trajectory", "t501", "--json").out)
    assert [each["number"] for each in found["calls"]] == [*range(8)]
    assert found["account"]["sampled"] == sum(v >= 0 for r in rows for v in r.token_versions)
    assert {each["reason"] for each in found["branches"]} == {None, "untrained_call"}
    out = rollart("show", uri, "--trajectory", "t501").out
    shown = [line.split() for line in out.splitlines()]
    assert f"{len(rows)} branches of the episode" in out
    assert "8 calls; delivered" in out
    assert found["delivered_fraction"] == pytest.approx(found["account"]["fraction"])
    assert f"; delivered_fraction {found['delivered_fraction']:.3f}" in " ".join(out.split())
    for call in found["calls"]:
        if call["trajectory_id"] is not None:
            prompt, end = call["answer_start"], call["answer_end"]
            counts = [str(prompt), str(end - prompt), str(call["trained_tokens"])]
            assert any(line[:1] == [str(call["number"])] and line[6:9] == counts for line in shown)


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of sessions of the gateway, with the policy's tokenizer."""
    made = [session_attempt(f"s-{seed}", seed) for seed in range(10)]
    run = captured_run(tmp_path_factory.mktemp("store"), made)
    add_tokenizer(run)
    return run.uri


def test_the_calls_of_an_attempt_are_replayed(sessions: str) -> None:
    said = rollart("replay", sessions, "--trajectory", "s-3")
    found = json.loads(rollart("replay", sessions, "--trajectory", "s-3", "--json").out)
    assert (said.code, found["equal"], found["divergence"]) == (0, True, None)
    unscored = "not scored, since the run has no pipeline"
    assert said.out.strip() == f"trajectory s-3: {found['calls']} calls, {unscored}, all equal"
    assert found["scored_tokens"] is None
    assert found["replayed"] == found["calls"] > 0


def test_another_parser_is_tried_on_all_calls(sessions: str) -> None:
    same = rollart("replay", sessions, "--exchanges")
    assert same.code == 0
    assert "calls of 10 attempts, parser hermes/1: all equal" in same.out
    other = rollart("replay", sessions, "--exchanges", "--parser", "mistral")
    assert other.code == 1
    found = rollart("replay", sessions, "--exchanges", "--parser", "mistral", "--json")
    assert found.code == 1
    report = json.loads(found.out)
    assert f"parser mistral: {report['differing']} differ" in other.out
    first = report["first"][0]
    assert f"{first['trajectory_id']}: call {first['call']}: parser: " in other.out


def test_wrong_use_of_replay_says_what_to_do(sessions: str) -> None:
    line = refused(rollart("replay", sessions, "--parser", "glm", "--step", "1"))
    assert "--parser is tried on all calls of a run; add --exchanges" in line
    alone = refused(rollart("replay", sessions, "--exchanges", "--harness"))
    assert "--harness runs the program of one attempt; add --trajectory ID" in alone
    both = refused(rollart("replay", sessions, "--exchanges", "--step", "1"))
    assert "replay takes one of --step N, --trajectory ID and --exchanges" in both
    assert "there are " in refused(rollart("replay", sessions, "--exchanges", "--parser", "x"))
