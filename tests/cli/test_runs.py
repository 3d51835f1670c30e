"""`runs`, `show` and `query` on a stored run: tables for people, JSON for programs."""

import json
import os
import shlex
import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollart_flow.cli.summary import summarize
from rollart_flow.rows import trajectories_table
from rollart_flow.schema import SCHEMA_VERSION, TABLES, to_table
from rollart_flow.store import RunStatus, open_run
from rollart_flow.types import Message, Role, ToolCall
from rollart_flow.types.messages import tool_result, user
from tests import builders
from tests.cli.shell import refused, rollart
from tests.runs import BATCH_SIZE, DOMAINS, STEPS, new_writer, small_run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a finished and a failed run."""
    folder = tmp_path_factory.mktemp("store")
    small_run(folder)
    small_run(folder, "broken", RunStatus.FAILED, steps=1)
    return folder


@pytest.fixture(autouse=True)
def _store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLART_STORE", str(store))


def test_runs_lists_name_status_steps_and_address(store: Path) -> None:
    assert json.loads(rollart("runs", "--json").out) == [
        {"name": "small", "uri": str(store / "small"), "status": "finished", "steps": STEPS},
        {"name": "broken", "uri": str(store / "broken"), "status": "failed", "steps": 1},
    ]
    table = rollart("runs").out
    assert "small" in table
    assert "failed" in table


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    small_run(tmp_path)
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "run.json").write_text("{")
    good, bad = json.loads(rollart("runs", "--store", str(tmp_path), "--json").out)
    assert (good["name"], good["status"]) == ("small", "finished")
    assert (bad["name"], bad["status"], bad["steps"]) == ("torn", "damaged", 0)
    assert bad["error"] in rollart("runs", "--store", str(tmp_path)).out


def test_runs_of_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    assert json.loads(rollart("runs", "--store", str(tmp_path), "--json").out) == []
    assert "`rollart run FILE` makes one" in rollart("runs", "--store", str(tmp_path)).out


def test_show_sums_a_run_up_from_its_tables() -> None:
    shown = json.loads(rollart("show", "small", "--json").out)
    assert shown["steps"] == STEPS
    assert shown["staleness"] == {"0": 24, "1": 8}
    assert shown["staleness_max"] == 1
    assert shown["lag"] == {"0": 8, "1": 16, "2": 8}
    assert shown["lag_max"] == 2
    assert shown["bounded"] == "staleness"
    assert shown["alpha"] == 1
    assert shown["outcomes"] == {
        "completed": STEPS * BATCH_SIZE,
        "failed": STEPS,
        "redundant": STEPS,
        "stale": STEPS,
    }
    assert shown["seconds"]["step"] == pytest.approx(2.0 * STEPS)
    assert shown["seconds"]["train"] == pytest.approx(0.75 * STEPS)
    curves = {(curve["domain"], curve["metric"]): curve for curve in shown["curves"]}
    assert set(curves) == {(d, m) for d in DOMAINS for m in ("success", "success_sampled")}
    assert curves["frozenlake", "success_sampled"]["values"] == [0.125, 0.5, 0.9375]
    assert curves["frozenlake", "success_sampled"]["steps"] == [0, 2, 4]


def test_show_prints_the_figures_and_what_to_try_next() -> None:
    shown = rollart("show", "small").out
    assert "staleness   at most 1 (alpha 1); 0: 24, 1: 8" in shown
    assert "lag         at most 2; 0: 8, 1: 16, 2: 8" in shown
    assert "completed 32" in shown
    assert "0.12" in shown
    assert "0.94" in shown
    assert "train 3.0s (38%)" in shown


def test_the_commands_to_try_next_work() -> None:
    shown = rollart("show", "small").out
    commands = [shlex.split(line) for line in shown.splitlines() if line.startswith("  rollart ")]
    assert [command[1] for command in commands] == ["query", "show", "replay", "ui"]
    for command in commands[:2]:
        assert rollart(*command[1:]).code == 0
    assert [command[2:] for command in commands[2:]] == [["small", "--step", str(STEPS)], ["small"]]


def test_a_run_elsewhere_is_named_by_its_address(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLART_STORE", str(store / "elsewhere"))
    shown = rollart("show", str(store / "small"))
    assert f"rollart replay {store / 'small'} --step {STEPS}" in shown.out


def test_show_says_why_a_run_failed() -> None:
    assert "the trainer ran out of memory" in rollart("show", "broken").out


def test_a_transcript_has_every_turn_with_its_tokens() -> None:
    said = rollart("show", "small", "--trajectory", "s4-frozenlake-0")
    assert said.code == 0
    assert said.out.count("turn ") == 3
    assert "FHFP step 2" in said.out
    assert "trained on in step 4, staleness 0, lag 1" in said.out
    assert "5 observation tokens, 2 generated" in said.out
    row = json.loads(rollart("show", "small", "--trajectory", "s4-frozenlake-0", "--json").out)
    drawn = [at for at, is_action in enumerate(row["action_mask"]) if is_action]
    for at in drawn:
        token, version = row["token_ids"][at], row["token_versions"][at]
        shown = [str(at), str(token), f"'<{token}>'", f"{row['logprobs'][at]:.4f}", str(version)]
        assert shown in [line.split() for line in said.out.splitlines()]


def test_a_transcript_says_why_nothing_was_scored() -> None:
    said = rollart("show", "small", "--trajectory", "s1-failed").out
    assert "failed (environment_error)" in said
    assert "the lake melted" in said
    assert "not scored" in said


def test_the_beginning_of_an_id_is_enough_where_it_fits_only_one() -> None:
    assert "s2-stale" in rollart("show", "small", "--trajectory", "s2-st").out
    line = refused(rollart("show", "small", "--trajectory", "s2-froz"))
    assert line.startswith("trajectory 's2-froz' is not unique: s2-frozenlake-0, ")
    assert "no trajectory 'x'" in refused(rollart("show", "small", "--trajectory", "x"))


def test_query_is_sql_over_the_tables() -> None:
    sql = "select domain, avg(reward) as reward from trajectories group by domain order by domain"
    assert json.loads(rollart("query", "small", sql, "--json").out) == [
        {"domain": "arithmetic", "reward": 0.5},
        {"domain": "frozenlake", "reward": 0.5},
    ]
    assert "frozenlake" in rollart("query", "small", sql).out


def test_query_reads_a_run_as_it_was(store: Path) -> None:
    cut = open_run(store / "small").snapshot().seq_of_step(1)
    sql = "select max(step) as step from steps"
    said = rollart("query", "small", sql, "--at", str(cut), "--json")
    assert json.loads(said.out) == [{"step": 1}]


def test_query_takes_the_filters_of_a_pipeline() -> None:
    from rollart_flow.algorithms.filters import complete, varied

    sql = "select trajectory_id from trajectories order by trajectory_id"
    run = open_run("small")
    expected = run.trajectories.filter(complete(), varied()).collect()["trajectory_id"].sort()
    assert 0 < len(expected) < run.trajectories.collect().height
    shown = rollart("query", "small", sql, "--filter", "complete", "--filter", "varied", "--json")
    assert [row["trajectory_id"] for row in json.loads(shown.out)] == expected.to_list()
    none = rollart("query", "small", sql, "--filter", "length(1, least_tokens=0)", "--json")
    assert json.loads(none.out) == []


def test_query_refuses_a_filter_that_it_does_not_know() -> None:
    sql = "select * from trajectories"
    said = refused(rollart("query", "small", sql, "--filter", "variety"))
    assert "filter 'variety' is none of complete, " in said


def test_one_query_proves_the_bound() -> None:
    sql = (
        "select max(b.policy_version - t.policy_version_start) as age "
        "from batches b join trajectories t on b.trajectory_id = t.trajectory_id"
    )
    assert json.loads(rollart("query", "small", sql, "--json").out) == [{"age": 1}]


def test_query_answers_json_for_lists_times_and_what_is_no_number() -> None:
    sql = (
        "select token_ids, created_at, sqrt(reward - 9) as odd from trajectories where attempt = 1"
    )
    rows = json.loads(rollart("query", "small", sql, "--json").out)
    assert len(rows) == STEPS * len(DOMAINS)
    assert isinstance(rows[0]["token_ids"][0], int)
    assert rows[0]["created_at"].startswith("2025-01-02T03:04:")
    assert rows[0]["odd"] is None


@pytest.mark.parametrize("sql", ["selec", "select nope from steps", "select * from nope"])
def test_a_wrong_query_is_wrong_use(sql: str) -> None:
    assert refused(rollart("query", "small", sql)).startswith("query: ")


def test_a_query_names_the_tables_that_there_are() -> None:
    line = refused(rollart("query", "small", "select * from nope"))
    assert line.endswith("; there are " + ", ".join(TABLES))


@pytest.mark.parametrize(
    "sql",
    ["drop table steps", "delete from steps", "truncate table steps", "create table a as select 1"],
)
def test_a_statement_that_is_no_query_is_wrong_use(sql: str) -> None:
    assert "a query begins with one of SELECT, " in refused(rollart("query", "small", sql))


_READ = "select * from {}('{}')"


@pytest.mark.parametrize(
    "function",
    ["read_csv", '"read_csv"', "`read_csv`", "READ_CSV /* x */ ", "read_csv -- x\n", "read_json",
     "read_ndjson", "read_parquet", "read_ipc", "scan_csv"],
)  # fmt: skip
def test_a_query_reads_no_other_file(function: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("key\nhunter2\n")
    line = refused(rollart("query", "small", _READ.format(function, secret)))
    assert "reads files; a query reads the tables of its run only" in line


@pytest.mark.parametrize(
    "sql",
    [
        "select $$'$$, * from read_csv('{}')",
        "select E'\\'', * from read_csv('{}') where '' = '')",
        "select /* /* */ ' */ * from read_csv('{}') -- '",
        "select * --\r'\n from read_csv('{}') -- '",
        "select 1 where exists (select * from read_csv('{}'))",
        "with a as (select * from read_csv('{}')) select * from a",
        "select * from steps join read_csv('{}') using (step)",
    ],
)
def test_a_file_cannot_be_hidden_in_a_query(sql: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("key\nhunter2\n")
    assert "hunter2" not in refused(rollart("query", "small", sql.format(secret)))


def test_a_query_may_speak_of_files_and_have_comments() -> None:
    sql = "/* one */ select 'read_csv(''x'')' as a -- and read_csv('x')\n from steps limit 1"
    assert json.loads(rollart("query", "small", sql, "--json").out) == [{"a": "read_csv('x')"}]


def test_a_conversation_is_shown_with_its_calls(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    bad = ToolCall("2", "price", {}, "'fruit' is a required property")
    good = ToolCall("1", "price", {"fruit": "apple"})
    said = [
        (0, user("What do apples cost?")),
        (0, Message(Role.ASSISTANT, "", "look it up", (good, bad))),
        (1, tool_result(good, "30 cents")),
        (1, Message(Role.ASSISTANT, "30")),
    ]
    messages = json.dumps([{"turn": turn, **each.as_json()} for turn, each in said])
    row = builders.trajectory(
        "a", turns=(builders.turn(""), builders.turn("30")), messages=messages, tools="[]",
        tool_calls=2, tool_errors=1,
    )  # fmt: skip
    writer.commit("trajectories", trajectories_table([row]))
    writer.close()
    shown = rollart("show", str(tmp_path / "a"), "--trajectory", "a").out
    for line in (
        "2 tool calls, 1 could not be made",
        "user            What do apples cost?",
        "thinking        look it up",
        'call            price(fruit="apple")',
        "call            price: 'fruit' is a required property",
        "tool price  30 cents",
        "assistant   30",
    ):
        assert " ".join(line.split()) in " ".join(shown.split()), line


HOSTILE = "\x1b]52;c;aGk=\x07\x9b31m\u202etxt\x1b[2J"
"""Text that would write to the clipboard, color, reorder and clear a terminal."""


def test_control_characters_of_a_run_are_escaped(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    turns = (builders.turn(HOSTILE, observation=HOSTILE),)
    row = builders.trajectory("a", turns=turns, error=HOSTILE)
    writer.commit("trajectories", trajectories_table([row]))
    writer.close(RunStatus.FAILED, HOSTILE)
    uri = str(tmp_path / "a")
    said = [
        rollart("show", uri),
        rollart("show", uri, "--json"),
        rollart("show", uri, "--trajectory", "a"),
        rollart("show", uri, "--trajectory", "a", "--json"),
        rollart("query", uri, "select error from trajectories"),
        rollart("query", uri, f'select * from "{HOSTILE}"'),
    ]
    for each in said:
        text = each.out + each.err
        assert "\\u001b" in text
        assert not set(text) & (set(HOSTILE) - set(string.printable))
    (turn,) = json.loads(said[3].out)["turns"]
    assert turn["observation"] == HOSTILE


def test_an_unknown_run_suggests_one_that_is_near() -> None:
    assert "did you mean small?" in refused(rollart("show", "smal"))
    assert "no run" in refused(rollart("query", "none", "select 1"))
    assert "no run" in refused(rollart("replay", "none", "--step", "1"))
    assert "no run" in refused(rollart("resume", "none"))


def test_a_run_of_a_newer_schema_is_refused_in_one_line(tmp_path: Path) -> None:
    run = small_run(tmp_path, steps=0)
    path = Path(run.uri) / "run.json"
    path.write_text(
        path.read_text().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 99')
    )
    assert "schema version 99" in refused(rollart("show", run.uri), code=1)


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user whom permissions stop, who is nobody where the tests run as root."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


def test_a_run_folder_without_permission_is_refused_in_one_line(tmp_path: Path) -> None:
    run = small_run(tmp_path, steps=0)
    assert rollart("show", run.uri).code == 0  # whatever is imported late is there now
    Path(run.uri).chmod(0)
    with unprivileged():
        said = rollart("show", run.uri)
    Path(run.uri).chmod(0o700)
    line = refused(said, code=1)
    assert run.uri in line
    assert "ermission" in line


def test_a_corrupt_table_is_refused_in_one_line(tmp_path: Path) -> None:
    run = small_run(tmp_path, steps=0)
    for entry in Path(run.uri, "tables", "steps", "_delta_log").glob("*.json"):
        entry.write_text("{ nonsense")
    refused(rollart("show", run.uri), code=1)


def test_episodes_of_several_branches_count_once_and_are_listed(tmp_path: Path) -> None:
    rows = [*builders.branched(0, 1, 0, group_id="g0"), *builders.branched(1, group_id="g1")]
    with new_writer(tmp_path, "branched") as writer:
        writer.commit("trajectories", trajectories_table(rows))
        made = [
            builders.batch_row(
                1, place, row.trajectory_id, row.group_id, episode_id=row.episode_id,
                policy_version=1, staleness=1 - int(row.group_id == "g1"),
            )
            for place, row in enumerate(rows)
        ]  # fmt: skip
        writer.commit("batches", to_table("batches", made))
    uri = str(tmp_path / "branched")
    shown = json.loads(rollart("show", uri, "--json").out)
    assert (shown["trajectories"], shown["episodes"]) == (4, 2)
    assert shown["outcomes"] == {"completed": 2}
    assert shown["staleness"] == {"0": 1, "1": 1}
    assert "2 in 4 rows" in rollart("show", uri).out
    row = json.loads(rollart("show", uri, "--trajectory", "g0", "--json").out)
    assert row["trajectory_id"] == "g0-00", "the first branch of the only episode that begins so"
    assert [(b["branch"], b["parent"], b["generated"]) for b in row["branches"]] == [
        (0, None, 2), (1, "g0-00", 2), (2, "g0-00", 2),
    ]  # fmt: skip
    assert "3 branches of the episode" in rollart("show", uri, "--trajectory", "g0-00.2").out
    assert "branches" not in rollart("show", uri, "--trajectory", "g1").out


@pytest.mark.parametrize(
    ("status", "first"),
    [
        (RunStatus.INTERRUPTED, "rollart resume"),
        (RunStatus.FAILED, "rollart logs"),
        (RunStatus.FINISHED, "rollart query"),
    ],
)
def test_show_names_what_goes_on_with_a_run_that_ended(
    status: RunStatus, first: str, tmp_path: Path
) -> None:
    run = small_run(tmp_path, status=status, steps=1)
    assert summarize(run).next_commands[0].startswith(first)
