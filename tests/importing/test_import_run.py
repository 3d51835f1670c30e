"""Conversations of others as a run, and a run as conversations, there and back."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from rollart_flow import export_data, import_conversations, open_run, runner
from rollart_flow.errors import RunExistsError, RunFailedError, SettingsError, StoreError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.store import Run, RunInfo, RunStatus, RunWriter, read_info
from rollart_flow.store.lease import Lease
from rollart_flow.store.pins import pin
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


IMITATES = """
from rollart_flow import Pipeline, Policy, stored, train
from rollart_flow.algorithms import sft

policy = Policy.tiny(hidden=32)
steps = train(stored("{run}", batch_size=8, unscored=True), policy, sft(), steps=2)
pipeline = Pipeline("imitates", steps)
"""


def losses(run: str, store: Path) -> list[tuple[float, float]]:
    loaded = load_source(IMITATES.format(run=run), "imitates.py")
    name = Path(run).name + "-imitated"
    made = open_run(runner.run(loaded, store=str(store), name=name, executor="inline").uri)
    return made.steps.sort("step").select("loss", "grad_norm").collect().rows()


def test_exported_tokens_are_imported_again_and_teach_the_same_to_the_last_bit(
    finished_run: Run, store: Path
) -> None:
    trained = "split = 'train' AND reward IS NOT NULL AND outcome IN ('completed', 'truncated')"
    exported = export_data(finished_run, "set", format="parquet", what="tokens", filter=trained)
    paths = [Path("set") / name for name in exported.files]
    import_conversations(paths, policy=finished_run.uri, name="again")
    before = rows(finished_run).filter(pl.col("seq").is_in(pl.read_parquet(paths)["seq"]))
    after = rows(open_run("again"))
    same = [
        "token_ids", "action_mask", "logprobs", "reward", "group_id", "domain", "outcome",
        "task_id", "solved",
    ]  # fmt: skip
    assert after.select(same).equals(before.select(same))
    assert set(after["policy_version_start"]) == {0}
    spans = pl.col("turns").list.eval(pl.element().struct["end"])
    assert after.select(spans).equals(before.select(spans))
    assert losses("again", store) == losses(finished_run.uri, store)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_ids": [5, 10**6, 1]}, "tokens, and none is 1000000"),
        ({"token_ids": [5, -1, 1]}, "tokens, and none is -1"),
        ({"token_ids": [5, "a", 1]}, "token_ids is not a list of numbers"),
        ({"token_ids": []}, "token_ids is not a list of whole numbers"),
        ({"action_mask": [True, False, True]}, "its first token is an action"),
        ({"action_mask": [0, 0, 0]}, "no token of it is an action"),
        ({"action_mask": [0, 2, 0]}, "action_mask is not a list of true and false"),
        ({"logprobs": [0.0]}, "logprobs has 1 values for 3 tokens"),
        ({"logprobs": [0.0, 0.5, -1.0]}, "logprobs has a value that is above 0"),
        ({"action_mask": None}, "it has no action_mask, loss_mask or labels"),
    ],
)
def test_tokens_that_make_no_chain_are_refused(
    store: Path, changes: dict[str, Any], said: str
) -> None:
    good = {"token_ids": [5, 6, 1], "action_mask": [False, True, True]}
    with pytest.raises(SettingsError, match=said):
        imported({**good, **changes})
    assert not (store / "new").exists()
    others = [
        {"input_ids": [5, 6, 1], "labels": [-100, 6, 1]},
        {"input_ids": [5, 6, 1], "loss_mask": [0, 1, 1], "logprobs": [0.0, None, None]},
    ]
    for row in rows(imported(good, *others)).to_dicts():
        assert (row["token_ids"], row["action_mask"]) == (good["token_ids"], good["action_mask"])
        assert np.isnan(row["logprobs"][1:]).all()


KILLED = """
import os, signal, sys
from rollart_flow import import_conversations
from rollart_flow.store import RunWriter

committed = RunWriter.commit


def commit(self, table, rows):
    committed(self, table, rows)
    if table == "trajectories":
        os.kill(os.getpid(), signal.SIGKILL)


RunWriter.commit = commit
import_conversations([sys.argv[1]], policy="tiny", name="new")
"""


def test_an_import_that_was_killed_leaves_nothing_to_read_and_begins_anew(store: Path) -> None:
    path = write("a.jsonl", *[{"messages": [ASKED, SAID]}] * 300)
    done = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list((store / "new/tables/trajectories").glob("*.parquet")), "rows were committed"
    for read in (open_run, pin):
        with pytest.raises(StoreError, match="was cut off; repeat `rollart import`"):
            read("new")
    assert "was cut off" in rollart("runs").out
    import_conversations([path], policy="tiny", name="new")
    run = open_run("new")
    assert (run.status, rows(run)["attempt"].len()) == (RunStatus.FINISHED, 300)
    assert rows(run)["trajectory_id"].n_unique() == 300


def test_a_run_that_is_being_imported_is_left_alone(store: Path) -> None:
    uri = str(store / "new")
    RunWriter.create(uri, RunInfo("new", "import", seed=0, status=RunStatus.IMPORTING))
    with Lease(uri):
        with pytest.raises(StoreError, match="is being imported; wait"):
            open_run("new")
        with pytest.raises(RunFailedError, match="run new is running"):
            imported({"messages": [ASKED, SAID]})
    assert read_info(uri).status is RunStatus.IMPORTING
