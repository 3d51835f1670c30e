"""Nodes are checked when they are built, and every error names the node."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rollart_flow import Pipeline, Policy, buffer, evaluate, filter, reward, rollout, tasks, train
from rollart_flow.algorithms import Curriculum, grpo
from rollart_flow.control.schedule.schedules import one_off, rollart, sync, sync_plus
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.errors import PipelineError
from rollart_flow.pipeline import Trajectories
from rollart_flow.pipeline.described import describe_pipeline
from rollart_flow.serverless import CallPolicy, ServerlessReward
from rollart_flow.types import Task
from tests.pipeline.parts import LAKE, POLICY, SUMS, two_domains

PROMPTS = tasks(LAKE, SUMS)
ATTEMPTS = rollout(PROMPTS, POLICY)
SCORED = reward(ATTEMPTS)
BATCHES = buffer(SCORED)
STEPS = train(BATCHES, POLICY, grpo(), steps=3)


def untyped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function for calls that a type checker would refuse, as users make them."""
    return function


def test_the_dag_of_the_design_is_built_by_function_calls() -> None:
    pipeline = two_domains()
    assert [node.name for node in pipeline.nodes] == [
        "tasks", "rollout", "reward", "no_nonsense", "buffer", "train", "evaluate",
    ]  # fmt: skip
    assert pipeline.tasks.domain_names == ("frozenlake", "arithmetic")
    assert pipeline.rollout.up is pipeline.tasks
    assert pipeline.buffer.up is pipeline.filters[0]
    assert pipeline.filters[0].scored
    assert pipeline.policy is POLICY
    assert pipeline.evaluate is not None
    assert pipeline.evaluate.every == 10


def test_a_branch_is_ordinary_python() -> None:
    def made(with_filter: bool) -> Pipeline:
        import polars as pl

        attempts: Trajectories = ATTEMPTS
        if with_filter:
            attempts = filter(attempts, pl.col("outcome") == "completed")
        return Pipeline("p", train(buffer(reward(attempts)), POLICY, grpo(), steps=1))

    assert [f.scored for f in made(True).filters] == [False]
    assert made(False).filters == ()


def test_defaults_follow_the_other_settings() -> None:
    assert rollout(tasks(LAKE, group_size=4), POLICY).max_replacements == 4
    assert rollout(tasks(LAKE), POLICY, max_replacements=0).max_replacements == 0
    assert BATCHES.alpha == 1
    assert BATCHES.schedule == rollart(1)
    assert buffer(SCORED, alpha=0).schedule == sync_plus()
    assert buffer(SCORED, schedule=rollart(2)).alpha == 2
    assert buffer(SCORED, schedule="one_off").schedule == one_off()
    with pytest.raises(PipelineError, match="buffer: schedule='often': expected one of areal, "):
        buffer(SCORED, schedule="often")
    assert ATTEMPTS.resource_class("frozenlake") == "CPU"
    bound = rollout(PROMPTS, POLICY, hw_affinity={"frozenlake": "H800", "default": "H20"})
    assert [bound.resource_class(name) for name in PROMPTS.domain_names] == ["H800", "H20"]
    found = rollout(PROMPTS, POLICY, hw_affinity="auto")
    assert [found.resource_class(name) for name in PROMPTS.domain_names] == ["auto", "auto"]


def test_tasks_may_come_from_lists_and_datasets() -> None:
    rows = [
        {"task_id": "a", "domain": "arithmetic", "payload": {"b": 1, "a": 2}},
        Task("b", "arithmetic"),
    ]
    listed = tasks((row for row in rows), domains=[SUMS])
    assert listed.sources == (
        (Task("a", "arithmetic", '{"a": 2, "b": 1}'), Task("b", "arithmetic")),
    )
    assert listed.domains == (SUMS,)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tasks(LAKE, group_size=0), r"^tasks: group_size .*greater than or equal to 1"),
        (lambda: tasks(LAKE, group_size=0, name="mine"), r"^mine: group_size"),
        (lambda: untyped(tasks)(), r"^tasks: no source"),
        (lambda: tasks(LAKE, FrozenLake(max_turns=8)), r"^tasks: two domains .*'frozenlake'"),
        (lambda: tasks(LAKE, weights={"chess": 1}), r"^tasks: weights .*unknown domain 'chess'"),
        (lambda: tasks(LAKE, weights={"frozenlake": 0}), r"^tasks: weights.frozenlake .*greater"),
        (lambda: tasks([{"task_id": "a"}], domains=[LAKE]), r"^tasks: a task is .*task_id"),
        (lambda: tasks([Task("a", "chess")], domains=[LAKE]), r"^tasks: .*unknown domain 'chess'"),
        (lambda: tasks([], domains=[LAKE]), r"^tasks: a list of tasks is empty"),
        (lambda: tasks(b"frozenlake"), r"^tasks: a source is a domain"),
        (lambda: untyped(tasks)(LAKE, group_sise=4), r"^tasks: .*mean group_size\?\)"),
        (lambda: rollout(PROMPTS, POLICY, hw_affinity={"chess": "H20"}), r"^rollout: .*chess"),
        (lambda: untyped(rollout)(PROMPTS, POLICY, hw_affinity="x"), r"^rollout: hw_aff.*auto"),
        (lambda: rollout(PROMPTS, POLICY, hw_affinity={"default": ()}), r"^rollout: .* no class"),
        (
            lambda: rollout(
                PROMPTS, POLICY, hw_affinity={"default": ("H800", "A100"), "frozenlake": ("H800",)}
            ),
            r"^rollout: hw_affinity names different stand-ins for H800; name the same",
        ),
        (lambda: rollout(PROMPTS, POLICY, sliding_workers=-1), r"^rollout: sliding_workers"),
        (lambda: rollout(PROMPTS, POLICY, prefill_workers=-1), r"^rollout: prefill_workers"),
        (
            lambda: rollout(PROMPTS, POLICY, prefill_affinity="H800"),
            r"^rollout: prefill_affinity=H800 is for no worker; set prefill_workers too$",
        ),
        (
            lambda: rollout(PROMPTS, POLICY, prefill_workers=1, hw_affinity="auto"),
            r"^rollout: hw_affinity=auto .* but prefill_workers computes them apart; name the",
        ),
        (lambda: untyped(rollout)(PROMPTS), r"^rollout: missing a required argument: 'policy'"),
        (lambda: untyped(rollout)(PROMPTS, "tiny"), r"^rollout: policy .*Policy"),
        (lambda: untyped(rollout)(SCORED, POLICY), r"^rollout: takes tasks\(...\), got reward"),
        (lambda: rollout(PROMPTS, POLICY, top_p=0.0), r"^rollout: top_p"),
        (lambda: rollout(PROMPTS, POLICY, step_timeout_s=0), r"^rollout: step_timeout_s"),
        (lambda: rollout(PROMPTS, POLICY, temperature=float("nan")), r"^rollout: temperature"),
        (
            lambda: train(BATCHES, POLICY, grpo(), steps=1, ranks=2),
            r"^train: .*ranks=2: the embedded trainer is one process; set backend to fsdp2",
        ),
        (lambda: train(BATCHES, POLICY, grpo(), steps=1, ranks=0), r"^train: ranks .*greater"),
        (
            lambda: train(BATCHES, POLICY, grpo(), steps=1, backend="megatron", tensor_parallel=2),
            r"^train: .*ranks=1: must be a multiple of tensor_parallel x pipeline_parallel = 2",
        ),
        (
            lambda: train(
                BATCHES, POLICY, grpo(), steps=1, backend="megatron", ranks=4, tensor_parallel=4
            ),
            r"^train: .*tensor_parallel=4: does not divide the model's key and value heads \(2\)",
        ),
        (
            lambda: train(BATCHES, POLICY, grpo(), steps=1, collective_timeout_s=0),
            r"^train: collective_timeout_s",
        ),
        (
            lambda: train(BATCHES, POLICY, grpo(), steps=1, backend="fsdp3"),
            r"^train: train.backend.*embedded, fsdp2",
        ),
        (lambda: reward(SCORED), r"^reward: takes rollout.*, got reward"),
        (lambda: untyped(reward)(ATTEMPTS, 3), r"^reward: fn .*callable"),
        (lambda: reward(ATTEMPTS, "ftp://host"), r"^reward: 'ftp://host' is no address"),
        (lambda: reward(ATTEMPTS, "my_rewards:score"), r"^reward: .* is no address .*give http"),
        (lambda: reward(ATTEMPTS, "http://h", timeout_s=0), r"^reward: timeout_s"),
        (lambda: untyped(buffer)(ATTEMPTS), r"^buffer: takes reward.* or filter.*got rollout"),
        (lambda: buffer(SCORED, alpha=-1), r"^buffer: alpha"),
        (lambda: buffer(SCORED, batch_size=60), r"^buffer: .* not divisible .*; take 64"),
        (lambda: buffer(SCORED, batch_size=0), r"^buffer: batch_size"),
        (lambda: buffer(SCORED, alpha=1, schedule=sync()), r"^buffer: alpha 1 conflicts .* 0"),
        (lambda: train(BATCHES, POLICY, grpo(), steps=0), r"^train: steps"),
        (lambda: train(BATCHES, POLICY, grpo(), steps=1, minibatches=65), r"^train: 65 mini"),
        (lambda: untyped(train)(BATCHES, POLICY, grpo, steps=1), r"^train: algorithm .*Algorithm"),
        (lambda: evaluate(POLICY), r"^evaluate: domains"),
        (lambda: untyped(evaluate)(POLICY, 3), r"^evaluate: takes domains, got 3"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(PipelineError, match=message) as raised:
        build()
    assert "\n" not in str(raised.value)


def test_a_domain_may_name_stand_ins_for_its_class() -> None:
    affinity = {"frozenlake": ["H800", "A100"], "default": "H20"}
    bound = rollout(PROMPTS, POLICY, hw_affinity=affinity)
    assert [bound.resource_class(domain) for domain in ("frozenlake", "other")] == ["H800", "H20"]
    assert bound.stand_ins() == {"H800": ("A100",)}


def test_a_reward_may_be_the_address_of_one() -> None:
    node = reward(ATTEMPTS, "http://user:secret@host/score?code=1", timeout_s=7, max_concurrent=3)
    assert isinstance(node.fn, ServerlessReward)
    assert (node.fn.policy.deadline_s, node.fn.policy.max_concurrent) == (7, 3)
    batches = buffer(node, batch_size=64)
    pipeline = Pipeline("remote", train(batches, POLICY, grpo(), steps=1))
    described = json.dumps(describe_pipeline(pipeline)) + json.dumps(pipeline.plan().as_json())
    assert described.count("http://host/score") == 2
    assert "secret" not in described
    assert "code" not in described


def test_a_reward_may_be_a_remote_one_with_a_policy() -> None:
    remote = ServerlessReward("serve://app", CallPolicy(attempts=2))
    assert reward(ATTEMPTS, remote).fn is remote


def test_sampling_that_cuts_the_distribution_is_allowed() -> None:
    cut = rollout(PROMPTS, POLICY, top_p=0.9, top_k=5)
    assert (cut.top_p, cut.top_k) == (0.9, 5)


def test_nodes_and_pipelines_are_frozen() -> None:
    with pytest.raises(AttributeError):
        PROMPTS.group_size = 4  # type: ignore[misc]
    with pytest.raises(AttributeError):
        two_domains().name = "other"  # type: ignore[misc]


def test_a_pipeline_has_one_of_each_and_one_policy() -> None:
    other = Policy.tiny(seed=1)
    with pytest.raises(PipelineError, match=r"^p: no train\(...\) among the outputs"):
        Pipeline("p", evaluate(POLICY, LAKE))
    with pytest.raises(PipelineError, match=r"^p: two train nodes"):
        Pipeline("p", STEPS, train(BATCHES, POLICY, grpo(), steps=4, name="again"))
    with pytest.raises(PipelineError, match=r"^rollout: its policy differs from that of train"):
        Pipeline("p", train(BATCHES, other, grpo(), steps=1))
    with pytest.raises(PipelineError, match=r"^evaluate: its policy differs"):
        Pipeline("p", STEPS, evaluate(other, LAKE))
    with pytest.raises(PipelineError, match=r"^tasks: two nodes have this name"):
        Pipeline("p", train(BATCHES, POLICY, grpo(), steps=1, name="tasks"))
    with pytest.raises(PipelineError, match=r"^policy: a node cannot have this name"):
        Pipeline("p", train(BATCHES, POLICY, grpo(), steps=1, name="policy"))
    with pytest.raises(PipelineError, match=r"^p: an output is what train.* got buffer\(...\)"):
        Pipeline("p", BATCHES)
    with pytest.raises(PipelineError, match="name 'a/b'"):
        Pipeline("a/b", STEPS)


def test_an_equal_policy_is_the_same_policy() -> None:
    assert Pipeline("p", train(BATCHES, Policy.tiny(), grpo(), steps=1)).policy == POLICY


def test_domains_may_be_evaluated_that_are_not_trained() -> None:
    pipeline = Pipeline("p", STEPS, evaluate(POLICY, Arithmetic(digits=1)))
    assert pipeline.evaluate is not None
    assert pipeline.evaluate.domains == (Arithmetic(digits=1),)


def test_a_curriculum_is_a_setting_of_tasks() -> None:
    chosen = tasks(LAKE, SUMS, curriculum=Curriculum(easy=0.1))
    batches = buffer(reward(rollout(chosen, POLICY)))
    pipeline = Pipeline("p", train(batches, POLICY, grpo(), steps=3))
    changed = pipeline.override({"tasks.curriculum.easy": "0.5", "curriculum.window": "8"})
    assert changed.tasks.curriculum == Curriculum(easy=0.5, window=8)
    recorded = describe_pipeline(changed)["nodes"]["tasks"]["curriculum"]
    assert (recorded["type"], recorded["easy"]) == ("Curriculum", 0.5)
    with pytest.raises(PipelineError, match=r"^tasks: curriculum"):
        untyped(tasks)(LAKE, curriculum=0.5)


def test_a_curriculum_skips_tasks_that_a_window_would_wait_for() -> None:
    scored = reward(rollout(tasks(LAKE, curriculum=Curriculum()), POLICY))
    with pytest.raises(PipelineError, match=r"^buffer: schedule window.* keeps to the order"):
        buffer(scored, schedule="window(8)")
    assert buffer(scored, schedule="areal(2)").alpha == 2
