"""An agent that is a program, as a setting of rollout and evaluate."""

from typing import Any

import pytest

from rollart_flow import Harness, Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake, SweSample
from rollart_flow.errors import PipelineError
from rollart_flow.pipeline.described import describe_pipeline
from rollart_flow.pipeline.environments import check_environments
from rollart_flow.pipeline.sandboxes import SandboxSettings
from tests.sandbox.probes import Probe

POLICY = Policy.tiny(max_context=4096)
ECHO = Harness("command", command=["echo"], wire="chat", variables={"OPENAI_API_KEY": "{key}"})


def attempts(*domains: Any, **settings: Any) -> Any:
    return rollout(tasks(*domains, group_size=2), POLICY, **settings)


def whole(*domains: Any, schedule: str | None = None, **settings: Any) -> Pipeline:
    scored = reward(attempts(*domains, **settings))
    steps = train(buffer(scored, batch_size=4, schedule=schedule), POLICY, grpo(), steps=1)
    return Pipeline("agents", steps, evaluate(POLICY, SweSample(), agent="bash", every=1))


def test_an_agent_is_a_harness_or_its_name() -> None:
    node = attempts(SweSample(), agent="bash(max_calls=3)")
    assert node.agent == Harness("bash", max_calls=3)
    assert attempts(SweSample(), agent=ECHO).agent_in("swe_sample") is ECHO
    assert attempts(SweSample()).agent_in("swe_sample") is None
    assert node.rebuild(agent="command(command=('echo',), wire='chat')").agent.command == ("echo",)


def test_each_domain_may_have_an_agent_of_its_own() -> None:
    own = {"swe_sample": {"agent": "bash"}}
    node = attempts(SweSample(), FrozenLake(), by_domain=own, step_timeout_s=5)
    assert node.agent_in("swe_sample") == Harness("bash")
    assert node.agent_in("frozenlake") is None
    bounds = [node.attempt_limits(domain, POLICY) for domain in node.up.domains]
    assert [limits.step_timeout_s for limits in bounds] == [60.0, 5.0]
    assert [limits.trajectory_timeout_s for limits in bounds] == [float("inf"), 300.0]


@pytest.mark.parametrize(
    ("domain", "settings", "said"),
    [
        (FrozenLake(), {"agent": "bash"}, "domain 'frozenlake' has no workspace"),
        (SweSample(), {"agent": "basch"}, "did you mean bash"),
        (SweSample(), {"agent": "bash(turns=3)"}, "unexpected keyword argument 'turns'"),
        (SweSample(), {"agent": 3}, "agent should be an instance of Harness or a valid string"),
        (SweSample(), {"agent": "bash", "max_turns": 3}, "max_turns is a limit of environments"),
        (
            SweSample(),
            {"by_domain": {"swe_sample": {"agent": "bash", "step_timeout_s": 3}}},
            "step_timeout_s is a limit of environments",
        ),
    ],
)
def test_an_agent_that_cannot_work_is_refused_in_one_line(
    domain: Any, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(PipelineError) as refused:
        attempts(domain, **settings)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_schedule_with_barriers_between_turns_takes_no_agent() -> None:
    with pytest.raises(PipelineError, match="barriers between turns"):
        whole(SweSample(), agent="bash", schedule="sync")
    assert whole(SweSample(), agent="bash", schedule="one_off").rollout.agent is not None


def test_plan_and_description_name_the_agent_and_no_pool_makes_its_boxes() -> None:
    pipeline = whole(SweSample(), agent=ECHO)
    stages = {stage.kind: stage for stage in pipeline.plan().stages}
    assert stages["rollout"].settings.endswith("agent command over chat")
    assert stages["evaluate"].settings.endswith("agent bash over chat")
    assert "for boxes" not in stages["rollout"].parallel
    assert pipeline.pooled_domains == ()
    described = describe_pipeline(pipeline)["nodes"]["rollout"]["agent"]
    assert described["variables"] == [["OPENAI_API_KEY", "{key}"]]
    assert whole(SweSample()).pooled_domains == ("swe_sample",)
    own = {"swe_sample": {"agent": "bash"}}
    mixed = whole(SweSample(), FrozenLake(), by_domain=own)
    (stage,) = (stage for stage in mixed.plan().stages if stage.kind == "rollout")
    assert stage.settings.endswith("swe_sample: agent bash over chat")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sandbox_workers", 2),
        ("max_sandboxes", 3),
        ("min_sandboxes", 1),
        ("max_sandbox_failures", 2),
        ("sandbox_affinity", {"default": "BOXES"}),
        ("sandbox_affinity", {"swe_sample": "BOXES"}),
        ("sandboxes", SandboxSettings(max_sandboxes=3)),
    ],
)
def test_settings_of_pools_are_refused_where_agents_make_all_boxes(
    setting: str, value: Any
) -> None:
    with pytest.raises(PipelineError, match=r"rollout: .*(no pool makes|not by a pool)"):
        whole(SweSample(), agent="bash", **{setting: value})
    assert whole(SweSample(), **{setting: value}).pooled_domains == ("swe_sample",)


def test_an_affinity_of_boxes_names_no_domain_of_an_agent_beside_one_with_pools() -> None:
    named = {"agent": "bash", "sandbox": "podman"}
    assert whole(SweSample(), **named).rollout.sandboxes.sandbox == "podman"
    own = {"swe_sample": {"agent": "bash"}}
    pooled = whole(SweSample(), Probe(), by_domain=own, max_sandboxes=3)
    assert pooled.pooled_domains == ("probe",)
    with pytest.raises(PipelineError, match="sandbox_affinity names 'swe_sample', but"):
        whole(SweSample(), Probe(), by_domain=own, sandbox_affinity={"swe_sample": "BOXES"})


def test_an_agent_is_refused_in_boxes_that_cannot_show_it() -> None:
    with pytest.raises(PipelineError, match="'kubernetes': its boxes show no file and no socket"):
        whole(SweSample(), agent="bash", sandbox="kubernetes")
    assert whole(SweSample(), agent="bash", sandbox="docker").rollout.agent is not None


def test_a_program_that_is_not_there_is_found_before_a_run(tmp_path: Any) -> None:
    gone = Harness("command", command=["{programs}/agent"], wire="chat", programs="nowhere")
    with pytest.raises(Exception, match="programs='nowhere' is no folder"):
        check_environments(whole(SweSample(folder=str(tmp_path)), agent=gone), tmp_path)
