"""Runs that learn from what other runs have stored: offline, or mixed into their own batches."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from starlette.testclient import TestClient

from rollart_flow import buffer, reward, runner, stored
from rollart_flow import filter as node_filter
from rollart_flow.errors import (
    PipelineError,
    RollartError,
    RunNotFoundError,
    SettingsError,
    StoreError,
)
from rollart_flow.models.folder import read_config, save_folder
from rollart_flow.pipeline import LoadedPipeline
from rollart_flow.pipeline.loading import load_source
from rollart_flow.pipeline.plan import make_plan
from rollart_flow.replay import replay_step
from rollart_flow.runner.processes import RunProcesses
from rollart_flow.schema import row_schema, to_table
from rollart_flow.store import Run, RunWriter, open_run
from rollart_flow.ui.app import ui_app
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.guard import Readers
from rollart_flow.views.pages import PAGES
from tests.cli.shell import rollart
from tests.copies import Rows, copied
from tests.runner.local import AfterStep, calling, nothing, pid_of

OFFLINE = '''"""Learns from a stored run."""

import polars as pl

from rollart_flow import Pipeline, Policy, evaluate, stored, train
from rollart_flow.algorithms import dpo, grpo, sft, topr
from rollart_flow.envs import FrozenLake

policy = Policy.tiny(hidden=32)
source = stored("{source}", {keywords})
steps = train(source, policy, {algorithm}, steps=4, checkpoint_every=2)
scores = evaluate(policy, FrozenLake(size=4), every=2, episodes=2, max_tokens=6, max_turns=3)
pipeline = Pipeline("offline", steps, scores)
'''
MANIFEST = ["step", "position", "trajectory_id", "source_run", "source_seq", "source_version"]


def offline(
    source: str, keywords: str = "batch_size=8", algorithm: str = "grpo()", **changes: object
) -> LoadedPipeline:
    text = OFFLINE.format(source=source, keywords=keywords, algorithm=algorithm)
    return load_source(text, "offline.py", {name: str(value) for name, value in changes.items()})


def finished(
    loaded: LoadedPipeline,
    store: Path,
    name: str,
    executor: str = "inline",
    after: AfterStep = nothing,
) -> Run:
    told = calling(after)
    done = runner.run(loaded, store=str(store), name=name, executor=executor, on_progress=told)
    return open_run(done.uri)


def manifest(run: Run) -> pl.DataFrame:
    return run.batches.sort("step", "position").select(MANIFEST).collect()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stored")


@pytest.fixture(scope="module")
def finished_run(finished_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run without what was under way at its end, when now and then attempts are cancelled: all
    groups are whole."""
    trained = set(finished_run.batches.collect()["trajectory_id"])

    def whole(rows: Rows) -> Rows:
        return [row for row in rows if row["split"] != "train" or row["trajectory_id"] in trained]

    return copied(finished_run, tmp_path_factory.mktemp("whole") / "small", {"trajectories": whole})


@pytest.fixture(scope="module")
def learned(finished_run: Run, store: Path) -> Run:
    """An offline run of four steps."""
    return finished(offline(finished_run.uri), store, "learned")


def test_a_batch_holds_rows_of_the_other_run_and_says_which(
    finished_run: Run, learned: Run
) -> None:
    theirs = finished_run.trajectories.collect()
    for step in range(1, 5):
        rows = learned.batch(step)
        assert rows.num_rows == 8
        for row in rows.to_pylist():
            (stored,) = theirs.filter(pl.col("seq") == row["source_seq"]).to_dicts()
            assert row["source_run"] == finished_run.uri
            assert row["trajectory_id"] == f"small/{stored['trajectory_id']}"
            assert (row["token_ids"], row["logprobs"]) == (stored["token_ids"], stored["logprobs"])
            assert (row["staleness"], row["lag"]) == (0, None)
    groups = manifest(learned).with_columns(pl.col("trajectory_id").str.slice(0, 15))
    sizes = groups.group_by("step", "trajectory_id").len()["len"]
    assert set(sizes) == {4}, "the advantages compare a group, so it stays together"


def test_a_step_replays_to_the_last_bit_from_the_tables_of_the_other_run(learned: Run) -> None:
    assert replay_step(learned.uri, 3).equal


def test_nothing_is_rolled_out_and_versions_are_evaluated(learned: Run) -> None:
    assert set(learned.trajectories.collect()["split"]) == {"evaluation"}
    assert set(learned.evaluations.collect()["policy_version"]) == {0, 2, 4}
    steps = learned.steps.collect()
    assert (steps["staleness_max"] == 0).all()
    assert steps["lag_max"].null_count() == 4
    assert (steps["wait_s"] > 0).all()


SCORED = """
from rollart_flow import Pipeline, Policy, evaluate, stored, train
from rollart_flow.algorithms import sft
from rollart_flow.envs import FrozenLake


def by_length(trajectory):
    return len(trajectory.token_ids) / 1024


policy = Policy.tiny(hidden=32)
steps = train(stored("{source}", batch_size=8), policy, sft(), steps=1)
lake = FrozenLake(size=4)
scores = evaluate(policy, lake, episodes=2, max_tokens=6, max_turns=3, reward=by_length)
pipeline = Pipeline("scored", steps, scores)
"""


def test_the_evaluation_of_an_offline_run_is_scored_by_its_own_reward(
    finished_run: Run, store: Path
) -> None:
    loaded = load_source(SCORED.format(source=finished_run.uri), "scored.py")
    run = finished(loaded, store, "scored")
    rows = run.trajectories.select("trajectory_id", "reward", n=pl.col("token_ids").list.len())
    for name, given, tokens in rows.collect().iter_rows():
        assert given == tokens / 1024, name
    stages = {stage.node: stage for stage in make_plan(loaded.pipeline).stages}
    assert stages["evaluate"].settings.endswith("scored by by_length")
    name = rows.collect()["trajectory_id"][0]
    again = rollart("replay", run.uri, "--trajectory", name, "--trust")
    assert again.code == 0, again.err
    with pytest.raises(PipelineError, match=r"evaluate: reward\(...\) scores evaluation too"):
        load_source(BOTH, "both.py")


SWITCHED = """
from rollart_flow import Pipeline, Policy, evaluate, reward, stored, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake


def by_length(trajectory):
    return len(trajectory.token_ids) / 1024


def by_turns(trajectory):
    return float(len(trajectory.turns)), {{"turns": 1.0}}


policy = Policy.tiny(hidden=32)
rows = stored("{source}", batch_size=8)
scored = reward(rows, by_length, max_concurrent=2, by_domain={{"frozenlake": {{"fn": by_turns}}}})
steps = train(scored, policy, grpo(), steps=4, checkpoint_every=2)
lake = FrozenLake(size=4)
scores = evaluate(policy, lake, episodes=2, every=2, max_tokens=6, max_turns=3)
pipeline = Pipeline("switched", steps, scores)
"""


def test_the_reward_node_of_an_offline_pipeline_scores_its_evaluation(
    finished_run: Run, learned: Run, store: Path
) -> None:
    loaded = load_source(SWITCHED.format(source=finished_run.uri), "switched.py", {"steps": "2"})
    run = finished(loaded, store, "switched")
    runner.resume(run.uri, steps=4, executor="inline")
    rows = run.trajectories.select("trajectory_id", "reward", n=pl.col("turns").list.len())
    assert run.evaluations.select("policy_version").collect().n_unique() == 3
    assert all(reward == n for _, reward, n in rows.collect().iter_rows())
    assert manifest(run).equals(manifest(learned))
    assert fingerprints(run) == fingerprints(learned)  # the rows have kept their rewards
    name = rows.collect()["trajectory_id"][0]
    again = rollart("replay", run.uri, "--trajectory", name, "--trust")
    assert again.code == 0, again.err
    assert run.info.settings["nodes"]["reward"]["max_concurrent"] == 2
    stages = {stage.node: stage for stage in make_plan(loaded.pipeline).stages}
    assert stages["reward"].settings.startswith("evaluation by by_length")
    assert stages["train"].settings.endswith("8 a batch")


@pytest.mark.parametrize(
    ("line", "other", "refusal"),
    [
        ('Pipeline("switched", steps, scores)', 'Pipeline("switched", steps)', "add evaluate"),
        ("max_turns=3)", "max_turns=3, reward=by_turns)", "scores evaluation too"),
        ("train(scored,", "train(reward(scored),", r"takes .* or stored\(...\), got reward"),
        ('"frozenlake": {{', '"sea": {{', "reward: by_domain names an unknown domain 'sea'"),
    ],
)
def test_a_reward_node_that_would_score_nothing_or_twice_is_refused(
    line: str, other: str, refusal: str
) -> None:
    assert line in SWITCHED
    with pytest.raises(PipelineError, match=refusal):
        load_source(SWITCHED.replace(line, other).format(source="small"), "switched.py")


def test_stored_trajectories_pass_neither_a_filter_nor_a_buffer() -> None:
    scored = reward(stored("small"))
    with pytest.raises(PipelineError, match=r"filter: .* give stored\(...\) the filter="):
        node_filter(scored, pl.col("reward") > 0)
    with pytest.raises(PipelineError, match=r"buffer: .* train\(...\) takes them"):
        buffer(scored)


BOTH = """
from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, stored, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake

policy = Policy.tiny(hidden=32)
prompts = tasks(FrozenLake(size=4), group_size=4)
batches = buffer(reward(rollout(prompts, policy)), batch_size=8)
steps = train(batches, policy, grpo(), steps=1)
scores = evaluate(policy, FrozenLake(size=4), reward=lambda trajectory: 1.0)
pipeline = Pipeline("both", steps, scores)
"""


def test_every_page_of_the_run_in_a_browser_has_an_answer(learned: Run, store: Path) -> None:
    client = TestClient(
        ui_app(RunCatalog(store=str(store)), Readers.at("127.0.0.1", None)),
        base_url="http://localhost",
    )
    known = {"text": "x", "step": "1", "group": "small/g", "trajectory": "small/t"}
    for page in PAGES:
        answer = client.get(f"/api/run/learned/page/{page}", params=known)
        assert answer.status_code == 200, (page, answer.text)


def test_a_run_that_is_resumed_draws_what_an_uninterrupted_one_draws(
    finished_run: Run, learned: Run, store: Path
) -> None:
    run = finished(offline(finished_run.uri, steps=2), store, "shorter")
    runner.resume(run.uri, steps=4, executor="inline")
    assert manifest(run).equals(manifest(learned))
    assert fingerprints(run) == fingerprints(learned)


def test_a_batch_whose_step_was_cut_off_is_trained_as_it_was_recorded(
    finished_run: Run, learned: Run, tmp_path: Path
) -> None:
    def before(step: int) -> Any:
        column = "policy_version" if step else "step"

        def earlier(rows: Rows) -> Rows:
            return [row for row in rows if row[column] <= 3]

        return earlier

    def swapped(rows: Rows) -> Rows:
        """Another order of the rows than what would be drawn."""
        last = [row for row in rows if row["step"] == 4]
        for row, position in zip(last, (1, 0, *range(2, 8)), strict=True):
            row["position"] = position
        return sorted(rows, key=lambda row: (row["step"], row["position"]))

    cut = copied(
        learned,
        tmp_path / "cut",
        {"steps": before(0), "weights": before(1), "batches": swapped, "evaluations": before(1)},
    )
    runner.resume(cut.uri, steps=5, executor="inline")
    assert manifest(cut).filter(pl.col("step") == 4).height == 8
    first, second = manifest(cut).filter(pl.col("step") == 4)["source_seq"][:2]
    then = manifest(learned).filter(pl.col("step") == 4)["source_seq"]
    assert (second, first) == (then[0], then[1])
    assert replay_step(cut.uri, 4).equal


def test_a_fork_draws_what_its_parent_drew_although_the_other_run_has_grown(
    finished_run: Run, store: Path, tmp_path: Path
) -> None:
    grown = copied(finished_run, tmp_path / "small")
    loaded = offline(grown.uri)
    parent = finished(loaded, store, "parent")
    names = row_schema("trajectories").names
    writer = RunWriter.open(grown.uri)
    rows = grown.trajectories.select(names).collect().to_dicts()
    writer.commit("trajectories", to_table("trajectories", later(rows)))
    writer.close()
    forked = open_run(
        runner.fork(parent.uri, 2, loaded, store=str(store), name="forked", executor="inline").uri
    )
    then = manifest(parent).filter(pl.col("step") > 2)
    assert manifest(forked).equals(then)
    assert fingerprints(forked) == fingerprints(parent)[2:]


def later(rows: Rows) -> Rows:
    """The rows under other ids, as of attempts that were made later."""
    return [
        {**row, "trajectory_id": f"{row['trajectory_id']}x", "episode_id": f"{row['episode_id']}x"}
        for row in rows
    ]


def fingerprints(run: Run) -> list[str]:
    return run.steps.sort("step").collect()["fingerprint"].to_list()


@pytest.mark.whole
@pytest.mark.usefixtures("shared_ray")
def test_on_ray_the_run_is_the_same_although_coordinator_buffer_and_trainer_die(
    finished_run: Run, learned: Run, store: Path, plants: list[RunProcesses]
) -> None:
    def kill(step: int) -> None:
        victims = {1: plants[-1].coordinator, 2: plants[-1].buffer, 3: None}
        if step in victims:
            os.kill(pid_of(victims[step] or plants[-1].trainers.workers[0]), signal.SIGKILL)

    run = finished(offline(finished_run.uri), store, "killed", "ray", kill)
    assert manifest(run).equals(manifest(learned))
    assert fingerprints(run) == fingerprints(learned)
    assert set(run.evaluations.collect()["policy_version"]) == {0, 2, 4}


def test_best_and_filter_leave_some_of_a_group(finished_run: Run, store: Path) -> None:
    keywords = 'filter=pl.col("reward") < pl.col("reward").max().over("group_id"), best=1, '
    run = finished(offline(finished_run.uri, f"{keywords} batch_size=4"), store, "best")
    ranks = finished_run.trajectories.filter(pl.col("split") == "train").with_columns(
        rank=pl.col("reward").rank("dense", descending=True).over("group_id")
    )
    drawn = manifest(run).join(ranks.collect(), left_on="source_seq", right_on="seq")
    assert set(drawn["rank"]) == {2}
    assert manifest(run).group_by("step").agg(pl.col("source_seq").n_unique())["source_seq"].min()


def test_a_warm_start_without_a_domain_is_refused() -> None:
    text = OFFLINE.format(source="any", keywords="batch_size=8", algorithm="sft()")
    text = text.replace("hidden=32", "warm_start=2").replace(", scores)", ")")
    with pytest.raises(PipelineError, match=r"there is none; add evaluate\(\.\.\.\), or leave"):
        load_source(text, "offline.py")


def unscored(rows: Rows) -> Rows:
    return [{**row, "reward": None, "reward_parts": None, "scored_at": None} for row in rows]


def test_rows_without_a_reward_are_drawn_if_asked_for(
    finished_run: Run, store: Path, tmp_path: Path
) -> None:
    theirs = copied(finished_run, tmp_path / "theirs", {"trajectories": unscored})
    with pytest.raises(SettingsError, match="has no episodes that it lets through"):
        finished(offline(theirs.uri, algorithm="sft()"), store, "refused")
    run = finished(offline(theirs.uri, "unscored=True, batch_size=8", "sft()"), store, "unscored")
    steps = run.steps.collect()
    assert steps["reward_mean"].is_nan().all()
    assert steps["loss"].is_finite().all()
    assert set(run.batch(1)["reward"].to_pylist()) == {None}
    with pytest.raises(PipelineError, match=r"grpo compares rewards, .* leave out unscored"):
        offline(theirs.uri, "unscored=True")


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ('filter=pl.col("reward") > 1e9', "has no episodes that it lets through"),
        ("batch_size=4096", "fewer than a batch of 4096; lower batch_size"),
        ("batch_size=2", "a group of 4 episodes, which are drawn together; raise batch_size"),
        ('filter=pl.col("rewards") > 0', "stored: filter: unknown column 'rewards'"),
        ('prefer=pl.col("reward")', "prefer: the expression must give one boolean"),
    ],
)
def test_what_cannot_fill_a_batch_is_refused_and_leaves_no_run(
    finished_run: Run, store: Path, keywords: str, said: str
) -> None:
    with pytest.raises(RollartError, match=said):
        finished(offline(finished_run.uri, keywords), store, "refused")
    assert not (store / "refused").exists()


def test_a_run_that_is_not_there_is_refused(store: Path) -> None:
    with pytest.raises(RunNotFoundError, match="no run 'smal' in"):
        finished(offline("smal"), store, "refused")
    assert not (store / "refused").exists()


def test_a_run_with_another_tokenizer_is_refused(
    finished_run: Run, store: Path, tmp_path: Path
) -> None:
    from rollart_flow.models.folder import load_folder
    from rollart_flow.models.tokenizer import tokenizer_files

    other = copied(finished_run, tmp_path / "other")
    folder = Path(other.uri, "policy")
    config, tensors = load_folder(folder)
    files = tokenizer_files(folder)
    files["tokenizer.json"] = files["tokenizer.json"].replace('"left"', '"leaf"')
    shutil.rmtree(folder)
    save_folder(folder, config, tensors, files)
    assert read_config(folder).as_json() == config.as_json()
    with pytest.raises(SettingsError, match=r"the tokenizer of the run at .* is not that of"):
        finished(offline(other.uri), store, "refused")
    assert not (store / "refused").exists()


def test_a_batch_says_that_the_other_run_is_gone_or_replaced(
    finished_run: Run, store: Path, tmp_path: Path
) -> None:
    other = copied(finished_run, tmp_path / "other")
    run = finished(offline(other.uri, steps=2), store, "orphan")
    shutil.rmtree(other.uri)
    with pytest.raises(StoreError, match="are gone with it; restore its folder"):
        run.batch(1)
    copied(finished_run, tmp_path / "other", {"trajectories": lambda rows: rows[::-1]})
    with pytest.raises(StoreError, match="another run has taken its place"):
        run.batch(1)


MIXED = '''"""Mixes stored trajectories into its batches."""

import polars as pl

from rollart_flow import Pipeline, Policy, buffer, mix, reward, rollout, stored, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake


def shaped(trajectory):
    return sum(trajectory.token_ids) % 97 / 970


policy = Policy.tiny(hidden=32)
prompts = tasks(FrozenLake(size=4), group_size=4)
new = buffer(reward(rollout(prompts, policy, max_tokens=6, max_turns=3), shaped), batch_size=8)
old = stored("{source}", {keywords})
steps = train(mix(new, old, weights=(2, 1)), policy, grpo(), steps=4, checkpoint_every=2)
pipeline = Pipeline("mixed", steps)
'''
OWN = pl.col("source_seq").is_null()


def mixed(source: str, keywords: str = "exempt=True", **changes: object) -> LoadedPipeline:
    text = MIXED.format(source=source, keywords=keywords)
    return load_source(text, "mixed.py", {name: str(value) for name, value in changes.items()})


def test_a_mixed_batch_has_new_rows_and_stored_ones_in_proportion(
    finished_run: Run, store: Path
) -> None:
    run = finished(mixed(finished_run.uri), store, "mixed")
    batches = run.batches.collect()
    assert batches.group_by("step").agg(OWN.sum(), (~OWN).sum().alias("drawn")).sort(
        "step"
    ).rows() == [(step, 8, 4) for step in range(1, 5)]
    drawn = batches.filter(~OWN)
    assert set(drawn["source_run"]) == {finished_run.uri}
    assert drawn["lag"].null_count() == drawn.height
    own = batches.filter(OWN).join(run.trajectories.collect(), on="trajectory_id")
    assert own.height == 32, "no id of a stored row is that of a new one"
    assert (own["policy_version"] - own["policy_version_start"] <= 1).all()
    assert run.steps.collect()["lags"].null_count() == 4
    assert replay_step(run.uri, 3).equal
    shorter = finished(mixed(finished_run.uri, steps=2), store, "mixed-shorter")
    runner.resume(shorter.uri, steps=4, executor="inline")
    theirs = pl.col("source_seq").is_not_null()
    assert manifest(shorter).filter(theirs).equals(manifest(run).filter(theirs))


@pytest.mark.parametrize("exempt", [False, True])
def test_a_run_replays_its_own_rows_within_the_bound_or_exempt(store: Path, exempt: bool) -> None:
    run = finished(mixed("self", f"exempt={exempt}", steps=5), store, f"own-{exempt}")
    batches = run.batches.collect()
    assert batches.filter(~OWN, pl.col("step") == 1).is_empty(), "nothing is stored yet"
    drawn = batches.filter(~OWN)
    assert drawn["source_run"].null_count() == drawn.height
    starts = run.trajectories.collect().select("seq", "policy_version_start", "trajectory_id")
    ages = drawn.join(starts, left_on="source_seq", right_on="seq").select(
        age=pl.col("policy_version") - pl.col("policy_version_start"),
        same=pl.col("trajectory_id") == "self/" + pl.col("trajectory_id_right"),
    )
    assert ages["same"].all()
    ended = run.steps.collect().select("step", last="seq")
    known = drawn.join(ended.with_columns(pl.col("step") + 1), on="step")
    assert (known["source_seq"] <= known["last"]).all()
    assert not batches.select("step", "trajectory_id").is_duplicated().any()
    assert replay_step(run.uri, 5).equal
    if not exempt:
        assert (drawn["lag"] <= 2).all()
        assert (ages["age"] <= 1).all()


@pytest.mark.parametrize(
    ("keywords", "weights", "said"),
    [
        ("exempt=False", "(2, 1)", "exempt the source by name, with stored"),
        ("exempt=True", "(0, 0)", "weights.* should be greater than 0"),
        ("exempt=True", "(1, 2, 3)", "weights has 3 numbers, but should have 2"),
        ("exempt=True", "(1000, 1)", "no episode beside the buffer's 8; raise its weight"),
        ("exempt=True, batch_size=4", "(2, 1)", "leave out its batch_size"),
    ],
)
def test_a_mix_that_means_nothing_is_refused(keywords: str, weights: str, said: str) -> None:
    text = MIXED.format(source="small", keywords=keywords).replace("(2, 1)", weights)
    with pytest.raises(RollartError, match=said):
        load_source(text, "mixed.py", {})


def test_pairs_of_several_runs_are_learned_from_and_their_margins_shown(
    finished_run: Run, store: Path, tmp_path: Path
) -> None:
    def varied(rows: Rows) -> Rows:
        return [{**row, "reward": float(number % 2)} for number, row in enumerate(rows)]

    theirs = [copied(finished_run, tmp_path / name, {"trajectories": varied}) for name in "ab"]
    loaded = offline(
        f'{theirs[0].uri}", "{theirs[1].uri}',
        'prefer=pl.col("reward") > 0, batch_size=16',
        "dpo()",
    )
    run = finished(loaded, store, "pairs")
    drawn = run.batches.collect()
    assert set(drawn["source_run"]) == {each.uri for each in theirs}
    names = drawn.select("source_run", pl.col("trajectory_id").str.split("/").list.first())
    assert set(names.rows()) == {(each.uri, each.info.name) for each in theirs}
    pairs = drawn.group_by("step", "pair").agg(
        pl.col("group_id").n_unique(), pl.col("source_run").n_unique()
    )
    assert set(pairs.select("group_id", "source_run").rows()) == {(1, 1)}
    assert replay_step(run.uri, 3).equal
    shown = json.loads(rollart("show", run.uri, "--json").out)["preferences"]
    last = drawn.filter(pl.col("step") == 4).sort("pair", "preferred")["implicit_reward"]
    margins = [better - worse for worse, better in last.reshape((-1, 2)).to_list()]
    assert shown["margins"][0] == pytest.approx(0, abs=1e-5), "the reference is where it starts"
    assert shown["margins"][3] == pytest.approx(sum(margins) / 8, rel=1e-5)
    assert shown["accuracies"][3] == sum(margin > 0 for margin in margins) / 8
    assert "first and last step" in rollart("show", run.uri).out
