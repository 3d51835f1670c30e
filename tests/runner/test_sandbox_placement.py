"""Where pools of boxes are placed: one class for each domain, with fallbacks, spread over CPUs."""

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic
from rollart_flow.resources import CPU, ResourceManager, ResourcePool
from rollart_flow.runner.sandboxes import place_sandboxes
from tests.sandbox.probes import Code, Probe


class Machine(ResourceManager):
    """Two CPUs."""

    def pools(self) -> dict[str, ResourcePool]:
        return {CPU: ResourcePool(CPU, 2.0, 2.0, ("node",))}


def pipeline(*domains: Probe | Arithmetic, **settings: object) -> Pipeline:
    policy = Policy.tiny()
    attempts = rollout(tasks(*domains), policy, **settings)  # type: ignore[arg-type]
    steps = train(buffer(reward(attempts)), policy, grpo(), steps=1)
    return Pipeline("p", steps, evaluate(policy, Code()))


def test_domains_of_rollout_and_evaluation_that_open_boxes_have_pools() -> None:
    assert pipeline(Arithmetic(), Probe()).pooled_domains == ("probe", "code")
    policy = Policy.tiny()
    steps = train(buffer(reward(rollout(tasks(Arithmetic()), policy))), policy, grpo(), steps=1)
    assert place_sandboxes(Pipeline("p", steps), Machine()) == []


def test_a_class_that_is_missing_falls_back_and_the_binding_says_so() -> None:
    built = pipeline(Probe(), sandbox_workers=2, sandbox_affinity={"probe": "BOXES"})
    placed = place_sandboxes(built, Machine())
    assert [each.worker for each in placed] == ["sandbox-cpu-0", "sandbox-cpu-1"]
    assert {(each.role, each.granted, each.spread) for each in placed} == {("sandbox", "CPU", True)}
    asked = {(request.domain, request.resource) for request in placed[0].requests}
    assert asked == {("probe", "BOXES"), ("code", "CPU")}
