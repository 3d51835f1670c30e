"""Each file of `pipelines/` runs at a tiny size and shows what it is meant to show."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.pipeline import load_pipeline
from rollart_flow.replay import keep_logprobs, replay_captured
from rollart_flow.runner.placement import Grant, preview
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.store import Run, open_run
from rollart_flow.types import EventKind, Reason, Split
from tests.cli.shell import served_reward
from tests.copies import Rows, copied
from tests.envs.foreign.nemo_gym_server import CounterRoutes, counting
from tests.envs.foreign.openenv_server import Answer, counting_in_a_thread, shown
from tests.envs.foreign.venvs import newer_python, served, venv
from tests.extras import needs
from tests.s3.server import BUCKET, s3_server

GALLERY = Path(__file__).parents[2] / "pipelines"
FAKES = Path(__file__).parents[1] / "envs" / "foreign" / "fakes"
RUN_BY_OTHERS = {"scenario", "pretrained_model"}
"""Run by tests/simulation, as it is no pipeline, and by tests/runner/test_pretrained.py."""
FILES = sorted({path.stem for path in GALLERY.glob("*.py")} - RUN_BY_OTHERS)
STEPS = 2
TINY = {
    "steps": str(STEPS),
    "policy.hidden": "32",
    "policy.warm_start": "2",
    "group_size": "4",
    "batch_size": "16",
}
BRIEF = {"every": "2", "episodes": "4"}
"""Further settings of the files that evaluate."""
FEW = {"every": "2", "evaluate.episodes": "4"}
"""The same where a domain has episodes of its own."""


@pytest.fixture(scope="module", autouse=True)
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an S3 store."""
    with (
        pytest.MonkeyPatch.context() as patch,
        s3_server(tmp_path_factory.mktemp("s3")) as server,
    ):
        server.client().create_bucket(Bucket=BUCKET)
        for name, value in server.environment().items():
            patch.setenv(name, value)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield f"s3://{BUCKET}/gallery"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store for the runs."""
    return str(tmp_path_factory.mktemp("gallery"))


@pytest.fixture
def boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes of this machine, whose images are cached for one test."""
    if problem := VARIANT.problem():
        pytest.skip(problem)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """URL of the reward of `remote_reward.py`, served as its docstring says."""
    with served_reward("pipelines.remote_reward:score") as url:
        yield url


def ran(name: str, store: str, *, executor: str = "inline", **more: str) -> Run:
    """The finished run of a file of the gallery."""
    loaded = load_pipeline(GALLERY / f"{name}.py", {**TINY, **more})
    run = open_run(runner.run(loaded, store=store, name=name, executor=executor).uri)
    assert run.steps.collect().height == STEPS
    return run


def trained(run: Run) -> pl.DataFrame:
    """The trajectories of all batches."""
    return run.trajectories.join(run.batches, on="trajectory_id", how="semi").collect()


def test_the_smallest_environment_fits_on_one_screen_and_says_what_is_solved(folder: str) -> None:
    text = (GALLERY / "own_environment.py").read_text()
    start, end = text.index("class ParityEnvironment"), text.index("policy = ")
    assert len(text[start:end].splitlines()) <= 40
    run = ran("own_environment", folder, **BRIEF)
    assert trained(run)["solved"].null_count() == 0
    assert {"success", "success_sampled"} <= set(run.evaluations.collect()["metric"])


def test_each_part_of_a_composed_reward_is_stored(folder: str) -> None:
    rows = trained(ran("own_reward", folder, **BRIEF))
    for row in rows.iter_rows(named=True):
        parts = {part["name"]: part["value"] for part in row["reward_parts"]}
        assert row["reward"] == pytest.approx(parts["outcome"] + parts["process"])
        assert 0 < parts["brevity"] <= 0.1


def test_the_rows_of_a_table_are_the_tasks(folder: str) -> None:
    run = ran("question_table", folder)
    assert set(trained(run)["task_id"]) <= {"grass", "blood", "lemon", "leaf", "brick"}
    assert set(trained(run)["reward"]) <= {0.0, 1.0}


def test_a_purchase_in_the_shop_is_rewarded_by_what_fits(folder: str) -> None:
    run = ran("shop", folder, **BRIEF | {"policy.warm_start": "20", "shop.max_turns": "4"})
    rows = run.trajectories.filter(pl.col("outcome") == "completed").collect()
    assert ((rows["reward"] >= 0) & (rows["reward"] <= 1)).all()
    assert set(trained(run)["domain"]) == {"shop"}


def test_a_long_talk_goes_on_in_branches_and_is_trained_with_all_of_them(folder: str) -> None:
    text = (GALLERY / "long_talk.py").read_text()
    start, end = text.index("class StoreroomEnvironment"), text.index("policy = ")
    assert len(text[start:end].splitlines()) <= 50
    run = ran("long_talk", folder, **{"policy.warm_start": "0"})
    rows = trained(run)
    assert set(rows["outcome"]) == {"completed"}
    assert rows.filter(pl.col("shared_tokens") > 20).height, "a chain that was cut"
    agents = rows.filter(pl.col("messages").str.contains("Say yes or no."))
    assert agents.height >= rows["episode_id"].n_unique()
    branch = rows.filter(pl.col("shared_tokens") > 20).row(0, named=True)
    kept = keep_logprobs(run.uri, branch["trajectory_id"])
    assert (kept.divergence, kept.tokens) == (None, sum(branch["action_mask"]))
    assert kept.step is not None


@pytest.mark.usefixtures("boxes")
def test_repairs_of_a_package_are_judged_test_by_test(folder: str) -> None:
    few = {"policy.warm_start": "0", "group_size": "2", "batch_size": "4"}
    run = ran("swe", folder, **few)
    rows = trained(run)
    assert set(rows["outcome"]) == {"truncated"}
    assert rows["messages"].str.contains("Call a tool").all()
    assert set(rows["reward"]) == {0.0}
    failed = run.verdicts.filter(pl.col("key").str.starts_with("fail_to_pass/")).collect()
    assert set(failed["passed"]) == {False}
    assert set(rows["trajectory_id"]) <= set(failed["trajectory_id"])


@pytest.mark.whole
@pytest.mark.usefixtures("boxes")
def test_a_program_repairs_a_package_and_its_calls_are_trained(folder: str) -> None:
    few = {"policy.warm_start": "0", "group_size": "2", "batch_size": "4"}
    run = ran("agent_swe", folder, **few)
    rows = trained(run)
    assert set(rows["env_version"]) == {"swe/1+bash/1"}
    assert set(rows["outcome"]) == {"completed"}
    assert (rows["turns"].list.len() == 3).all(), "answers without a call"
    calls = run.exchanges.collect().join(rows, on="trajectory_id", how="semi")
    assert calls["trained_tokens"].sum() == rows["action_mask"].list.sum().sum()
    replayed = replay_captured(run.uri, rows["trajectory_id"][0])
    assert replayed.divergence is None
    assert replayed.scored_tokens == rows["action_mask"][0].sum()
    kept = keep_logprobs(run.uri, rows["trajectory_id"][0])
    assert (kept.divergence, kept.tokens) == (None, replayed.scored_tokens)


@pytest.mark.usefixtures("boxes")
def test_four_families_of_tasks_run_together(folder: str) -> None:
    few = {"policy.warm_start": "0", "group_size": "2", "batch_size": "8"}
    run = ran("world", folder, **few)
    rows = run.trajectories.collect()
    assert set(rows["domain"]) == {"sokoban", "math_python", "shop", "swe_sample"}
    assert rows.filter(pl.col("outcome").is_in(["failed", "timed_out"])).is_empty()
    boxes = run.sandboxes.collect()
    assert set(boxes["domain"]) == {"math_python", "swe_sample"}
    ended = rows.filter(pl.col("outcome") != "cancelled")["trajectory_id"].implode()
    used = boxes.filter(pl.col("trajectory_id").is_in(ended), pl.col("domain") == "swe_sample")
    assert (used["execs"] >= 1).all(), "unless no attempt ended before the run"
    assert used["leaked"].sum() == 0


def test_games_of_other_packages_are_played_in_text(folder: str) -> None:
    few = {"policy.warm_start": "0", "group_size": "2", "batch_size": "8"}
    run = ran("text_games", folder, **few)
    rows = run.trajectories.collect()
    names = {"GuessTheNumber-v0-easy", "Blackjack-v1", "textworld", "reasoning_gym"}
    assert set(rows["domain"]) == names
    assert rows.filter(pl.col("outcome").is_in(["failed", "timed_out"])).is_empty()


def test_a_policy_that_takes_images_is_shown_pictures(folder: str) -> None:
    run = ran("visual_lake", folder, **BRIEF)
    rows = trained(run)
    assert rows["images"].list.len().min() >= 1  # type: ignore[operator]
    assert run.image(rows["images"][0][0]).size == (16, 16)


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_a_policy_that_takes_images_learns_to_reach_the_goal(folder: str) -> None:
    loaded = load_pipeline(GALLERY / "visual_lake.py", {})
    run = open_run(runner.run(loaded, store=folder, name="learns", executor="inline").uri)
    sampled = pl.col("metric") == "success_sampled"
    found = run.evaluations.filter(sampled).sort("step").collect()["value"]
    assert found[0] < 0.5
    assert found[-1] > 0.7


def test_puzzles_are_played_on_levels_that_training_saw_and_on_held_out_ones(folder: str) -> None:
    run = ran("games", folder, **BRIEF)
    assert {"success", "success/held_out"} <= set(run.evaluations.collect()["metric"])
    rows = trained(run)
    assert set(rows["outcome"]) <= {"completed", "truncated"}
    assert rows["turns"].list.len().max() > 1  # type: ignore[operator]


def test_a_policy_may_call_python_for_problems_of_mathematics(folder: str) -> None:
    rows = trained(ran("math_python", folder, **{"policy.warm_start": "0"}))
    assert set(rows["outcome"]) <= {"completed", "truncated"}
    assert all('"name": "python"' in tools or '"name":"python"' in tools for tools in rows["tools"])


def test_dynamic_sampling_trains_no_group_whose_rewards_are_equal(folder: str) -> None:
    run = ran("dynamic_sampling", folder, **BRIEF | {"policy.warm_start": "20"})
    assert run.steps.collect()["zero_variance_groups"].to_list() == [0] * STEPS
    rewards = trained(run).group_by("group_id").agg(pl.col("reward").n_unique())
    assert rewards["reward"].min() > 1  # type: ignore[operator]
    equal = run.trajectories.group_by("group_id").agg(pl.col("reward").n_unique() == 1)
    known = run.trajectories.select("episode_id", "group_id").join(equal, on="group_id")
    filtered = run.events.filter(
        (pl.col("kind") == EventKind.EVICT) & (pl.col("reason") == Reason.GROUP_FILTERED)
    )
    evicted = known.join(filtered, left_on="episode_id", right_on="subject", how="semi").collect()
    assert evicted["reward"].all()  # whether there are any is chance, in so few groups


def test_a_critic_is_trained_beside_the_policy(folder: str) -> None:
    run = ran("critic", folder, **BRIEF | {"policy.warm_start": "20"})
    assert run.steps.collect()["value_loss"].max() > 0  # type: ignore[operator]
    assert run.batches.collect()["targets"].null_count() == 0


def test_the_environment_is_at_an_openenv_server(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is one of our own, with the answers of the environment of `openenv init`."""
    answers: dict[str, Callable[[], Answer]] = {
        "reset": lambda: shown({"echoed_message": "ready", "message_length": 0}, 0.0),
        "step": lambda: shown({"echoed_message": "x", "message_length": 3}, 0.3),
    }
    with counting_in_a_thread(answers) as server:
        monkeypatch.setenv("OPENENV_URL", server.url)
        run = ran("openenv_echo", folder, **{"policy.warm_start": "0"})
    rows = trained(run)
    assert set(rows["domain"]) == {"echo"}
    assert set(rows["reward"]) == {0.3}
    sent = {each["data"]["message"] for each in server.requests if each["type"] == "step"}
    said = rows.select(pl.col("turns").list.last().struct.field("action")).to_series()
    assert set(said) <= sent


@pytest.mark.whole
def test_houses_of_alfworld_are_visited_and_some_are_held_out(folder: str) -> None:
    needs("fast_downward", "alfworld")
    few = {"policy.warm_start": "0", "group_size": "2", "batch_size": "4"}
    run = ran("alf_world", folder, **FEW, **few)
    rows = trained(run)
    assert set(rows["outcome"]) <= {"completed", "truncated"}
    assert set(rows["env_version"]) == {"alfworld/1"}
    assert "success/held_out" in set(run.evaluations.collect()["metric"])


def test_an_environment_of_skyrl_gym_is_played_in_a_process(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is a stand-in of ours; the next test has the real one."""
    shutil.copytree(FAKES / "skyrl_gym", tmp_path / "rollart_flow" / "skyrl" / "skyrl_gym")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SKYRL_PYTHON", sys.executable)
    few = {"policy.warm_start": "0", "group_size": "2", "batch_size": "4"}
    assert_a_share_is_paid(ran("skyrl_guess", folder, **FEW, **few), "guess")


def assert_a_share_is_paid(run: Run, domain: str) -> None:
    """Rewards lie from 0 to 1, and tasks that were held out have been evaluated."""
    rows = trained(run)
    assert set(rows["domain"]) == {domain}
    assert rows["reward"].is_between(0, 1.5).all()
    assert {"success/held_out", "success"} <= set(run.evaluations.collect()["metric"])


@pytest.mark.whole
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "domain", "variable", "package"),
    [
        ("skyrl_guess", "guess", "SKYRL_PYTHON", "skyrl-gym==0.4.0"),
        ("verifiers_sums", "sums", "VERIFIERS_PYTHON", "verifiers==0.4.0"),
    ],
)
def test_the_policy_learns_in_the_process_of_the_package_itself(
    folder: str,
    name: str,
    domain: str,
    variable: str,
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, str(venv(package)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert_it_learned(name, domain, folder)


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_the_policy_learns_at_a_server_of_nemo_gym(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = venv("nemo-gym==0.4.0", base=newer_python())
    with served(python, "nemo_gym_server.py", "mcqa") as port:
        monkeypatch.setenv("NEMO_GYM_URL", f"http://127.0.0.1:{port}")
        assert_it_learned("nemo_letters", "letters", folder)


def assert_it_learned(name: str, domain: str, folder: str) -> None:
    """The mean reward of the last steps is twice that of the first ones."""
    loaded = load_pipeline(GALLERY / f"{name}.py", {})
    run = open_run(runner.run(loaded, store=folder, name=f"{name}-1", executor="inline").uri)
    assert_a_share_is_paid(run, domain)
    rewards = run.steps.sort("step").collect()["reward_mean"]
    assert rewards.tail(4).mean() > 2 * rewards.head(4).mean()  # type: ignore[operator]


def test_answers_are_verified_by_a_resources_server_of_nemo_gym(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is one of our own; the test above has that of the package."""
    verified: list[str] = []

    def seed(routes: CounterRoutes) -> None:
        routes.reply(200, {}, "a")

    def verify(routes: CounterRoutes) -> None:
        body = routes.server.seen[-1][1]
        verified.append(body["expected_answer"])
        routes.reply(200, {**body, "reward": float("A" in str(body["response"]["output"][-1]))})

    with counting({"/seed_session": seed, "/verify": verify}) as server:
        monkeypatch.setenv("NEMO_GYM_URL", server.url)
        run = ran("nemo_letters", folder, **FEW, **{"policy.warm_start": "0"})
    assert set(trained(run)["reward"]) <= {0.0, 1.0}
    assert set(verified) == set("ABCDEF"), "two of them are held out"


def test_tasks_of_verifiers_are_those_that_are_not_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its episodes need the package: see the test that is run with `whole`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pipeline = load_pipeline(GALLERY / "verifiers_sums.py", {}).pipeline
    (sums,) = pipeline.tasks.domains
    held_out = {task.task_id for task in sums.held_out(0)}
    assert len(held_out) == 8
    trained = {task.task_id for task in islice(sums.tasks(Split.TRAIN, 0), 32)}
    assert len(trained) == 32
    assert not trained & held_out


def test_the_reward_comes_from_the_endpoint(
    folder: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARD_URL", endpoint)
    rows = trained(ran("remote_reward", folder))
    keys = {part["name"] for parts in rows["reward_parts"] for part in parts}
    assert keys == {"right", "process"}


def test_everything_of_a_run_lies_in_the_bucket(bucket: str) -> None:
    run = ran("s3_store", bucket)
    assert run.uri.startswith(bucket)
    assert trained(run).height == STEPS * int(TINY["batch_size"])


@pytest.fixture(scope="module")
def two_domains(folder: str) -> Run:
    return ran("two_domains", folder, **BRIEF, minibatches="1")


def test_a_fresh_policy_imitates_the_solved_attempts_of_a_stored_run(
    folder: str, two_domains: Run
) -> None:

    def solved(rows: Rows) -> Rows:
        """Rewards as if every second attempt had been solved, which a tiny policy never does."""
        return [{**row, "reward": float(place % 2)} for place, row in enumerate(rows)]

    copied(two_domains, Path(folder, "two-domains-1"), {"trajectories": solved})
    tiny = {"steps": "2", "policy.hidden": "32", "stored.batch_size": "4", **BRIEF}
    loaded = load_pipeline(GALLERY / "offline.py", tiny)
    result = runner.run(loaded, store=folder, name="offline", executor="inline")
    run = open_run(result.uri)
    for step in (1, 2):
        assert set(run.batch(step)["reward"].to_pylist()) == {1.0}
    assert set(run.evaluations.collect()["policy_version"]) == {0, 2}


def test_another_schedule_is_the_one_that_the_run_records(folder: str) -> None:
    run = ran("another_schedule", folder)
    assert '"areal-in-order"' in json.dumps(run.info.settings)


def test_a_fork_goes_on_with_another_recipe(folder: str, two_domains: Run) -> None:
    parent = two_domains
    loaded = load_pipeline(GALLERY / "fork_recipe.py", {**TINY, **BRIEF})
    fork = open_run(
        runner.fork(parent.uri, 1, loaded, store=folder, name="fork", executor="inline").uri
    )
    assert fork.info.parent is not None
    assert (fork.info.parent.uri, fork.info.parent.step) == (parent.uri, 1)
    assert fork.steps.collect()["step"].to_list() == [2]


@pytest.mark.parametrize("name", FILES)
def test_every_file_can_be_planned_at_that_size(name: str) -> None:
    offline = {"stored.batch_size": TINY["batch_size"], "policy.hidden": TINY["policy.hidden"]}
    sizes = offline if name == "offline" else TINY
    plan = load_pipeline(GALLERY / f"{name}.py", sizes).pipeline.plan()
    settings = {stage.kind: stage.settings for stage in plan.stages}
    if name == "offline":
        assert settings["train"].endswith("16 a batch")
        return
    assert settings["tasks"].startswith("groups of 4 ")
    assert settings["buffer"].startswith("16 a batch")


def test_every_file_of_the_gallery_is_run_here_and_listed_in_its_page() -> None:
    files = {path.stem for path in GALLERY.glob("*.py")}
    here = Path(__file__).read_text()
    assert 8 <= len(files) <= 32
    assert [name for name in FILES if f'"{name}' not in here] == []
    page = (GALLERY.parent / "docs" / "gallery.md").read_text()
    assert set(re.findall(r"^\| `pipelines/(\w+)\.py`", page, re.MULTILINE)) == files


@pytest.mark.usefixtures("ray_of_classes")
def test_each_domain_is_bound_to_its_class_and_falls_back_to_cpus(folder: str) -> None:
    granted = preview(load_pipeline(GALLERY / "two_classes.py", TINY).pipeline)
    assert {Grant("generation", "frozenlake", "H800", "H800", 1)} <= set(granted)
    assert {Grant("generation", "default", "H20", "H20", 1)} <= set(granted)
    run = ran("two_classes", folder)
    fallbacks = run.events.filter(pl.col("kind") == EventKind.FALLBACK).collect()["detail"]
    assert {json.loads(each)["requested"] for each in fallbacks} == {"H800", "H20"}
    assert {turn["hardware"] for turns in trained(run)["turns"] for turn in turns} == {"CPU"}


@pytest.mark.whole
@pytest.mark.usefixtures("ray_of_classes")
def test_each_domain_is_generated_on_the_class_that_it_is_bound_to(folder: str) -> None:
    run = ran("two_classes", folder, executor="ray")
    turns = trained(run).select("domain", "turns").explode("turns")
    used = turns.select("domain", pl.col("turns").struct.field("hardware")).unique()
    assert set(used.iter_rows()) == {("frozenlake", "H800"), ("arithmetic", "H20")}
