"""Weights that cannot be sent from GPU to GPU are refused before a run starts."""

from dataclasses import replace

import pytest

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.engines.vllm import variant
from rollart_flow.engines.vllm.receiver import Sent
from rollart_flow.engines.worker import sent_to
from rollart_flow.envs import FrozenLake
from rollart_flow.errors import PipelineError, SettingsError, WeightsError
from rollart_flow.resources import CPU, Placement
from rollart_flow.weights.broadcast.requirements import Sending, check_placed

FITTING = Sending("vllm", True, frozenset({"H20"}), sliding_workers=1, ranks=1)


def pipeline(weights: str, policy: Policy, affinity: dict[str, str] | None = None) -> Pipeline:
    attempts = rollout(tasks(FrozenLake(), group_size=8), policy, hw_affinity=affinity)
    return Pipeline(
        "lake", train(buffer(reward(attempts)), policy, grpo(), steps=1, weights=weights)
    )


@pytest.mark.parametrize("kind", ["nccl", "ipc"])
def test_what_fits_is_taken(kind: str) -> None:
    FITTING.check(kind)
    replace(FITTING, classes=()).check(kind)
    check_placed(kind, ["H800", "H800"], ["CPU", "H20"])


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        (
            "nccl",
            {"engine": "embedded", "engine_receives": False},
            "not the embedded engine; take policy.engine=vllm",
        ),
        ("nccl", {"classes": {"CPU"}}, "every engine is bound to CPU; name another class"),
        ("ipc", {"sliding_workers": 0}, "trainer's own GPU only.*set sliding_workers"),
        ("ipc", {"ranks": 2}, "one rank sends, on one GPU, but train.ranks=2; take 1"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_one_line(
    kind: str, changes: dict[str, object], why: str
) -> None:
    with pytest.raises(SettingsError, match=f"^train.weights='{kind}': .*{why}"):
        replace(FITTING, **changes).check(kind)  # type: ignore[arg-type]


def test_a_pipeline_says_who_would_send_and_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineError, match=r"^train: train\.weights='nccl': only vLLM receives"):
        pipeline("nccl", Policy.tiny())
    monkeypatch.setattr(variant, "find_spec", lambda name: object())  # vLLM need not be there
    policy = Policy.tiny(hidden=32, heads=2, engine="vllm")
    with pytest.raises(PipelineError, match="every engine is bound to CPU"):
        pipeline("nccl", policy)
    assert pipeline("nccl", policy, {"default": "H20"}).train.weights == "nccl"
    with pytest.raises(PipelineError, match="set sliding_workers"):
        pipeline("ipc", policy, {"default": "H20"})


def test_what_was_placed_on_cpus_is_refused_where_weights_are_sent() -> None:
    for kind in ("nccl", "ipc"):
        with pytest.raises(WeightsError, match="placed the trainer on CPU; take 'local' or 'moo"):
            check_placed(kind, ["CPU"], ["H20"])
        with pytest.raises(WeightsError, match="placed every engine on CPU"):
            check_placed(kind, ["H800"], ["CPU", "CPU"])
    check_placed("local", ["CPU"], ["CPU"])


def test_only_engines_that_can_be_reached_ask_the_trainer() -> None:
    apart, sharing = Placement("a", "rollout", "H20"), Placement("b", "rollout", "H20", shares=True)
    assert sent_to(apart, "nccl", "here") == Sent("nccl", "here")
    assert sent_to(sharing, "ipc", "here") == Sent("ipc", "here")
    for placement, weights in (
        (apart, "ipc"),
        (Placement("c", "evaluation", CPU), "nccl"),
        (apart, "local"),
        (apart, "mooncake://10.0.0.1:1"),
    ):
        assert sent_to(placement, weights, "here") is None
