"""Settings given as text replace those of the file; a wrong one says which are right."""

import json
from dataclasses import dataclass

import pytest

from rollart_flow import Pipeline, Secret, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import Critic, Decayed, grpo, opsm, ppo, tis
from rollart_flow.control.schedule.schedules import areal, rollart, window
from rollart_flow.envs import Arithmetic, Domain
from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.pipeline.described import fields_of
from tests.pipeline.parts import POLICY, two_domains


def test_keys_name_a_node_or_stand_alone_where_they_fit_only_one() -> None:
    changed = two_domains().override({"alpha": "2", "train.steps": "20", "batch_size": "16"})
    assert changed.buffer.alpha == 2
    assert changed.buffer.schedule.name == "rollart(alpha=2)"
    assert changed.train.steps == 20
    assert changed.train.up is changed.buffer
    assert changed.buffer.batch_size == 16


def test_settings_within_settings_have_dots() -> None:
    changed = two_domains().override(
        {"optimizer.lr": "1e-4", "algorithm.loss.clip": "0.1", "clip_norm": "0.5"}
    )
    assert changed.train.optimizer.lr == 1e-4
    assert changed.train.optimizer.clip_norm == 0.5
    assert fields_of(changed.train.algorithm.loss)["clip"] == 0.1


def test_a_schedule_is_set_by_name_and_brings_its_own_alpha() -> None:
    changed = two_domains(alpha=1).override({"schedule": "window(8, alpha=2)"})
    assert changed.buffer.schedule == window(8, alpha=2)
    assert changed.buffer.alpha == 2
    assert two_domains().override({"buffer.schedule": "sync"}).buffer.schedule.barriers
    assert two_domains(schedule=areal(2)).override({"steps": "3"}).buffer.schedule == areal(2)
    with pytest.raises(SettingsError, match="schedule='often': expected one of areal"):
        two_domains().override({"schedule": "often"})
    with pytest.raises(PipelineError, match="alpha 3 conflicts with the schedule's 0"):
        two_domains().override({"schedule": "one_off", "alpha": "3"})


def test_a_policy_or_domain_changes_wherever_it_stands() -> None:
    changed = two_domains().override({"policy.seed": "3", "arithmetic.digits": "1"})
    assert changed.evaluate is not None
    assert changed.rollout.policy == changed.train.policy == changed.evaluate.policy
    assert changed.policy.seed == 3
    assert changed.tasks.domains[1] == Arithmetic(digits=1)
    assert changed.evaluate.domains[1] == Arithmetic(digits=1)
    assert changed.tasks.sources[1] == Arithmetic(digits=1)


def test_values_are_read_as_their_types() -> None:
    changed = two_domains().override(
        {
            "rollout.hw_affinity": '{"default": "H20"}',
            "rollout.max_turns": "3",
            "optimizer.betas": "[0.8, 0.9]",
            "optimizer.schedule": "linear",
            "optimizer.decay_steps": "50",
            "pipeline.seed": "7",
        }
    )
    assert changed.rollout.hw_affinity == {"default": "H20"}
    assert changed.rollout.max_turns == 3
    assert changed.train.optimizer.betas == (0.8, 0.9)
    assert changed.train.optimizer.schedule == "linear"
    assert changed.seed == 7


def test_the_pipeline_that_is_overridden_stays_as_it_was() -> None:
    pipeline = two_domains()
    pipeline.override({"alpha": "2", "policy.seed": "3"})
    assert pipeline.buffer.alpha == 1
    assert pipeline.policy.seed == 0


def test_no_change_gives_the_same_settings() -> None:
    pipeline = two_domains()
    assert pipeline.override({}).settings() == pipeline.settings()


def test_a_default_that_depends_on_another_setting_follows_it() -> None:
    changed = two_domains().override({"group_size": "4"})
    assert changed.rollout.max_replacements == 4


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("alpa", "1", r"^no setting 'alpa' \(did you mean buffer.alpha\?\)$"),
        ("train.stps", "1", r"^no setting 'train.stps' \(did you mean train.steps\?\)$"),
        ("seed", "1", r"^setting 'seed' is not unique; say which: .*policy.seed, .*tasks.seed"),
        ("steps", "many", r"^train.steps should be a valid integer.*'many'"),
        ("alpha", "-1", r"^buffer.alpha should be greater than or equal to 0"),
        ("rollout.hw_affinity", "{", r"^rollout.hw_affinity is wrong: Invalid JSON.*got '\{'"),
        ("optimizer.schedule", "steep", r"^train.optimizer.schedule should be 'constant'"),
        ("clip", "-1", r"^train.algorithm.loss.clip should be greater than 0, got -1.0"),
        ("expression", "x", r"^no setting 'expression'"),
    ],
)  # fmt: skip
def test_a_wrong_setting_says_what_is_right(key: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as raised:
        two_domains().override({key: value})
    assert "\n" not in str(raised.value)


def test_the_name_of_a_run_is_no_setting() -> None:
    with pytest.raises(SettingsError, match=r"by --name; write train\.algorithm\.name whole"):
        two_domains().override({"name": "mine"})


@dataclass(frozen=True)
class Judged(Arithmetic):
    """A domain with a setting that is named like a key."""

    judge_api_key: str | Secret = ""


def over(domain: Domain) -> Pipeline:
    """A pipeline over one domain."""
    scored = reward(rollout(tasks(domain, group_size=4), POLICY))
    batches = buffer(scored, batch_size=8)
    return Pipeline("judged", train(batches, POLICY, grpo(), steps=1))


def test_a_key_in_plain_text_reaches_neither_run_json_nor_events() -> None:
    """Settings of the file and of `-s` are stored by these two functions only."""
    secret = Judged(judge_api_key=Secret.from_env("JUDGE_KEY"))
    assert "JUDGE_KEY" in json.dumps(over(secret).settings())
    plain, given = over(Judged(judge_api_key="hunter2")), over(Judged())
    for use in (plain.settings, lambda: given.override({"judge_api_key": "hunter2"})):
        with pytest.raises(SettingsError, match=r"judge_api_key is plain text") as refused:
            use()
        assert "hunter2" not in str(refused.value)


def test_settings_that_do_not_fit_together_are_refused_as_in_the_file() -> None:
    with pytest.raises(PipelineError, match="batch_size 64 is not divisible by group_size 7"):
        two_domains().override({"group_size": "7"})
    with pytest.raises(PipelineError, match="alpha 2 conflicts with the schedule's 1"):
        two_domains(alpha=1, schedule=rollart(1)).override({"alpha": "2"})


def test_settings_are_json_and_name_what_ran() -> None:
    settings = json.loads(json.dumps(two_domains().settings()))
    assert settings["name"] == "two-domains"
    assert settings["policy"]["type"] == "Policy"
    nodes = settings["nodes"]
    assert nodes["buffer"]["alpha"] == 1.0
    assert nodes["buffer"]["upstream"] == ["no_nonsense"]
    assert nodes["train"]["algorithm"]["name"] == "grpo"
    assert nodes["tasks"]["sources"][0]["name"] == "frozenlake"
    assert "reward" in nodes["no_nonsense"]["expression"]


def test_settings_of_every_part_of_a_recipe_can_be_overridden() -> None:
    algorithm = ppo(dual=3.0, kl=0.1, staleness=Decayed(), correction=opsm(weight=tis()))
    changed = two_domains(algorithm=algorithm).override(
        {
            "train.algorithm.loss.clip": "0.1",
            "loss.dual": "2.5",
            "advantage.lam": "0.9",
            "critic.coefficient": "0.25",
            "correction.delta": "0.001",
            "correction.weight.cap": "5",
            "algorithm.kl": "0.2",
            "kl_estimator": "k2",
            "algorithm.reference": "3",
            "staleness.factor": "0.5",
        }
    )
    assert changed.train.algorithm == ppo(
        clip=0.1,
        dual=2.5,
        lam=0.9,
        kl=0.2,
        kl_estimator="k2",
        reference=3,
        critic=Critic(0.25),
        staleness=Decayed(0.5),
        correction=opsm(0.001, weight=tis(5)),
    )


def test_an_override_that_contradicts_is_refused_as_in_the_file() -> None:
    pipeline = two_domains(algorithm=grpo(correction=tis()))
    with pytest.raises(SettingsError, match="would correct twice"):
        pipeline.override({"loss.ratio_to": "behavior"})
    with pytest.raises(SettingsError, match="should be 'behavior' or 'old'"):
        pipeline.override({"loss.ratio_to": "new"})
    with pytest.raises(SettingsError, match="need kl above 0"):
        pipeline.override({"kl_estimator": "k1"})
    with pytest.raises(SettingsError, match=r"algorithm\.staleness is wrong"):
        pipeline.override({"algorithm.staleness": "Decayed"})
    stale = pipeline.override({"algorithm.staleness": '{"factor": 0.5}'})
    assert stale.train.algorithm.staleness == Decayed(0.5)
    with pytest.raises(SettingsError, match="is an object; set it in the pipeline file"):
        two_domains().override({"algorithm.correction": "tis"})
