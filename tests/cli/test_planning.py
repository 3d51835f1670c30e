"""`rollart plan FILE --hardware`: proposals, their settings, and what is refused."""

import json
import shlex
from collections import Counter
from pathlib import Path

import pytest

from rollart_flow.pipeline import load_pipeline
from rollart_flow.simulation.planning.demand import demand_of
from rollart_flow.simulation.planning.proposal import PREDICTION_ERROR
from tests.cli.shell import Said, refused, rollart

RECORDED = str(Path(__file__).parents[1] / "simulation" / "data" / "two-domains")
FILE = """
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic, FrozenLake

prompts = tasks(FrozenLake(size=4, brief=True), Arithmetic(), group_size=8)
batches = buffer(reward(rollout(prompts, Policy.tiny(), max_tokens=4)), batch_size=8)
pipeline = Pipeline("planned", train(batches, Policy.tiny(), grpo(), steps=2), prices={"H20": 1.0})
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "planned.py"
    path.write_text(FILE)
    return str(path)


def planned(file: str, hardware: str, *more: str) -> Said:
    return rollart("plan", file, "--hardware", hardware, "--seeds", "2", "--limit", "1000", *more)


def test_proposals_are_settings_that_the_pipeline_takes(file: str) -> None:
    said = planned(file, "H800=4,H20=2", "--price", "H800=2.5", "--json")
    assert (said.code, said.err) == (0, "")
    plan = json.loads(said.out)
    for proposal in plan["proposals"]:
        assert proposal["low_s"] <= proposal["step_s"] <= proposal["high_s"]
        used = proposal["devices"]
        assert used["H800"] <= 4
        assert used.get("H20", 0) <= 2
        hour = 2.5 * used["H800"] + 1.0 * used.get("H20", 0)
        assert proposal["cost_per_hour"] == pytest.approx(hour)
        assert proposal["cost_per_step"] == pytest.approx(hour * proposal["step_s"] / 3600)
        assert proposal["binds"] == max(proposal["loads_s"], key=proposal["loads_s"].get)
        changed = load_pipeline(file, proposal["settings"]).pipeline
        assert changed.policy.device == "cuda"
        assert changed.buffer.batch_size == 8
    command = shlex.split(plan["command"])
    assert command[:3] == ["rollart", "run", file]
    given = dict(word.split("=", 1) for word in command[4::2])
    assert given == plan["proposals"][0]["settings"]
    assert any("1 to 4 tokens of action" in line for line in plan["assumptions"])


def test_attempts_have_the_shares_of_the_pipeline_or_are_of_one_domain(file: str) -> None:
    weighted = FILE.replace("group_size=8)", 'group_size=8, weights={"arithmetic": 99.0})')
    Path(file).write_text(weighted)
    demand = demand_of(load_pipeline(file, {}).pipeline)
    assert {each.name: each.share for each in demand.domains} == {
        "frozenlake": 1.0, "arithmetic": 99.0
    }  # fmt: skip
    drawn = Counter(domain for domain, _ in demand.scripts(0, 400))
    assert drawn == {"arithmetic": 396, "frozenlake": 4}
    assert [domain for domain, _ in demand.scripts(0, 8, "frozenlake")] == ["frozenlake"] * 8
    assert "equal shares" not in " ".join(demand.assumptions)


def test_the_same_words_give_the_same_plan(file: str) -> None:
    once, again = (planned(file, "H20=2") for _ in range(2))
    assert once == again
    assert "no price" not in once.out
    assert "binds" in once.out
    assert "rollart run" in once.out


@pytest.mark.whole
def test_a_run_on_cpus_gives_a_plan_for_cpus_that_runs(file: str, tmp_path: Path) -> None:
    said = planned(file, "CPU=2", "--from", RECORDED, "--price", "CPU=0.04", "--json")
    assert (said.code, said.err) == (0, "")
    plan = json.loads(said.out)
    first = plan["proposals"][0]
    assert first["low_s"] < first["step_s"] / (1 + PREDICTION_ERROR)
    assert first["high_s"] > first["step_s"] * (1 + PREDICTION_ERROR)
    assert any("9 of 10 predictions" in line for line in plan["assumptions"])
    chosen = first["settings"]
    assert chosen["rollout.engine_workers"] in ("1", "2")
    store = ("--executor", "inline", "--store", str(tmp_path / "runs"), "--json")
    run = rollart(*shlex.split(plan["command"])[1:], *store)
    assert run.code == 0, run.err
    assert json.loads(run.out)["status"] == "finished"


def test_lengths_of_a_run_take_the_place_of_assumed_ones(file: str) -> None:
    plan = json.loads(planned(file, "H100=2", "--from", RECORDED, "--json").out)
    assert plan["proposals"][0]["cost_per_hour"] is None
    assert not any("9 of 10 predictions" in line for line in plan["assumptions"])
    assert not any("tokens of action" in line for line in plan["assumptions"])


def test_what_no_plan_can_be_made_for_is_refused_in_one_line(file: str) -> None:
    cases = {
        "H900=4": "--hardware H900: there is no model of its speed; take A100, H20",
        "H20=0": "--hardware H20=0: give a number of devices from 1",
        "H20": "--hardware is like H800=96,H20=32, got 'H20'",
        "H20=1,H20=2": "--hardware names H20 twice",
        "CPU=2": "how fast CPUs are is not known; give a run on them with --from RUN",
        "H20=1": "too few devices: tiny needs 1 H20 for one engine worker and 1 H20 to train",
    }
    for hardware, said in cases.items():
        assert refused(planned(file, hardware)).startswith(said)
    assert "give --hardware too" in refused(rollart("plan", file, "--from", "some-run"))


def test_a_large_model_needs_an_engine_that_splits_it(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    shape = {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 29568,
        "vocab_size": 152064,
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(shape))
    path = tmp_path / "large.py"
    path.write_text(FILE.replace("Policy.tiny()", f"Policy.from_pretrained({str(model)!r})"))
    line = refused(planned(str(path), "H800=64"))
    assert line.startswith("model needs 4 H800 for one engine worker, and the engine embedded")
    del shape["vocab_size"]
    (model / "config.json").write_text(json.dumps(shape))
    line = refused(planned(str(path), "H800=64"))
    assert line == "policy: config.json of model has no vocab_size, so its size is not known"
