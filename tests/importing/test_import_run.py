"""Conversations of others as a run, and a run as conversations, there and back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from rollart_flow import export_data, import_conversations, open_run
from rollart_flow.errors import RunExistsError, SettingsError
from rollart_flow.store import Run, RunStatus
from tests.cli.shell import refused, rollart

ASKED, SAID = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
LONG: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "<eos> is text 😀"},
    {"role": "assistant", "content": " hm \n", "weight": 0},
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "nobody answers"},
]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLART_STORE", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def write(path: str, *records: object) -> str:
    Path(path).write_text("".join(f"{json.dumps(each)}\n" for each in records))
    return path


def imported(*records: object, **options: Any) -> Run:
    import_conversations([write("a.jsonl", *records)], policy="tiny", name="new", **options)
    return open_run("new")


def rows(run: Run) -> pl.DataFrame:
    return run.trajectories.sort("seq").collect()


def test_what_the_assistant_said_is_an_action_of_unknown_logprob(store: Path) -> None:
    run = imported({"messages": LONG, "reward": 0.5, "id": 7})
    assert (run.info.status, run.info.pipeline) == (RunStatus.FINISHED, "import")
    assert run.weights.collect().height == 1
    (row,) = rows(run).to_dicts()
    mask = np.array(row["action_mask"])
    logprobs = np.array(row["logprobs"])
    assert np.isnan(logprobs[mask]).all()
    assert (logprobs[~mask] == 0).all()
    assert {row["token_ids"][n] for n in np.flatnonzero(mask)[-1:]} == {1}  # the stop token
    assert mask.sum() == 3  # "ok" and its stop token: the first answer has weight 0
    assert [turn["action"] for turn in row["turns"]] == [" hm \n", "ok"]
    assert [m["role"] for m in json.loads(row["messages"])] == [m["role"] for m in LONG[:-1]]
    assert (row["reward"], row["domain"], row["outcome"]) == (0.5, "imported", "completed")
    origin = {"file": "a.jsonl", "number": 1, "id": "7"}
    assert json.loads(row["task"]) == origin


def test_a_preference_is_a_group_of_two(store: Path) -> None:
    run = imported(
        {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
        {"chosen": [ASKED, SAID], "rejected": [ASKED, {**SAID, "content": "no"}], "group": "g"},
        domain="sums",
    )
    found = rows(run).select("group_id", "attempt", "reward", "domain").rows()
    assert found == [
        ("record00000001", 0, 1.0, "sums"), ("record00000001", 1, 0.0, "sums"),
        ("g", 0, 1.0, "sums"), ("g", 1, 0.0, "sums"),
    ]  # fmt: skip


def test_share_gpt_has_the_same_tokens_and_no_reward(store: Path) -> None:
    turns = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]
    found = rows(imported({"conversations": turns}, {"messages": [ASKED, SAID]}))
    first, second = found["token_ids"].to_list()
    assert first == second
    assert found["reward"].null_count() == 2
    assert found["scored_at"].null_count() == 2


@pytest.mark.parametrize("form", ["jsonl", "parquet", "hf"])
def test_what_is_exported_is_imported_again_with_the_same_tokens(store: Path, form: Any) -> None:
    run = imported(
        {"messages": LONG, "reward": 0.5, "reward_parts": {"a": 0.5}, "solved": True},
        {"prompt": "q", "chosen": "yes", "rejected": "no"},
        {"messages": [ASKED, {**SAID, "finish_reason": "length"}], "domain": "cut"},
    )
    exported = export_data(run, "set", format=form)
    paths = [Path("set") / name for name in exported.files]
    import_conversations(paths, policy="new", name="again")
    before, after = rows(run), rows(open_run("again"))
    same = [
        "token_ids", "action_mask", "logprobs", "token_versions", "messages", "reward",
        "reward_parts", "solved", "group_id", "attempt", "domain", "outcome",
    ]  # fmt: skip
    assert after.select(same).equals(before.select(same))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"messages": [ASKED]}, "the assistant says nothing"),
        ({"messages": [SAID]}, "the assistant speaks first"),
        ({"messages": [ASKED, SAID, SAID]}, "messages 2 and 3 are both the assistant's"),
        ({"messages": [{**ASKED, "role": "king"}, SAID]}, "message 1 has the role 'king'"),
        ({"messages": [ASKED, SAID], "reward": "high"}, "reward is 'high', not a finite number"),
        ({"messages": [ASKED, SAID], "reward": 10**400}, "malformed: int too large"),
        ({"messages": [ASKED, {**SAID, "tool_calls": [3]}]}, "malformed"),
        ({"chosen": "4", "rejected": "5"}, "chosen is a text, but there is no prompt"),
        ({"prompt": "q", "chosen": "4"}, "it has no rejected"),
        ([1], "it is of type list, not an object"),
        ({}, "it has no messages"),
        ({"messages": [{**ASKED, "content": "x" * 20_000}, SAID]}, "the policy's context ends at"),
    ],
)
def test_a_bad_record_is_named_with_its_line_and_nothing_stays(
    store: Path, record: object, said: str
) -> None:
    with pytest.raises(SettingsError, match=f"a.jsonl, line 2: .*{said}"):
        imported({"messages": [ASKED, SAID]}, record)
    assert not (store / "new").exists()
    result = import_conversations(["a.jsonl"], policy="tiny", name="new", skip_bad=True)
    assert (result.conversations, result.skipped) == (1, 1)


def test_the_shell_reads_the_run(store: Path) -> None:
    write("b.jsonl", {"messages": LONG}, "x")
    words = ("import", "b.jsonl", "--policy", "tiny", "--name", "new")
    assert "line 2: it is of type str" in refused(rollart(*words))
    told = json.loads(rollart(*words, "--skip-bad", "--json").out)
    assert (told["conversations"], told["skipped"]) == (1, 1)
    assert "completed 1" in rollart("show", "new").out
    assert "nan" in rollart("show", "new", "--trajectory", "record00000001-00").out
    with pytest.raises(RunExistsError):
        import_conversations(["b.jsonl"], policy="tiny", name="new", skip_bad=True)


def test_tokens_are_a_data_set_too(store: Path) -> None:
    run = imported({"messages": LONG, "reward": 1.0})
    export_data(run, "set.parquet", format="parquet", what="tokens")
    table = pq.read_table("set.parquet")
    assert table["token_ids"].to_pylist() == rows(run)["token_ids"].to_list()
    export_data(run, "set.jsonl", what="tokens")
    (line,) = Path("set.jsonl").read_text().splitlines()
    assert None in json.loads(line)["logprobs"]  # JSON has no NaN
