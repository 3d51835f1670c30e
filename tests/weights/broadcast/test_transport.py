"""Weights that cannot be sent from GPU to GPU are refused before a run starts."""

from dataclasses import replace

import pytest

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.engines.vllm import variant
from rollart_flow.envs import FrozenLake
from rollart_flow.errors import PipelineError, SettingsError, WeightsError
from rollart_flow.resources import CPU
from rollart_flow.weights.broadcast.transport import IPC, NCCL, BroadcastTransport
from rollart_flow.weights.registry import transport_of
from rollart_flow.weights.transport import SentWeights, TransferEnds

FITTING = TransferEnds("vllm", True, frozenset({"H20"}), sliding_workers=1, ranks=1)


def pipeline(weights: str, policy: Policy, affinity: dict[str, str] | None = None) -> Pipeline:
    attempts = rollout(tasks(FrozenLake(), group_size=8), policy, hw_affinity=affinity)
    return Pipeline(
        "lake", train(buffer(reward(attempts)), policy, grpo(), steps=1, weights=weights)
    )


@pytest.mark.parametrize("transport", [NCCL, IPC], ids=lambda transport: transport.backend)
def test_what_fits_is_taken(transport: BroadcastTransport) -> None:
    transport.check(FITTING)
    transport.check(replace(FITTING, classes=()))
    transport.check_placed(["H800", "H800"], ["CPU", "H20"])


@pytest.mark.parametrize(
    ("transport", "changes", "why"),
    [
        (
            NCCL,
            {"engine": "embedded", "engine_receives": False},
            "not the embedded engine; take policy.engine=vllm",
        ),
        (NCCL, {"classes": {"CPU"}}, "every engine is bound to CPU; name another class"),
        (IPC, {"sliding_workers": 0}, "trainer's own GPU only.*set sliding_workers"),
        (IPC, {"ranks": 2}, "one rank sends, on one GPU, but train.ranks=2; take 1"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_one_line(
    transport: BroadcastTransport, changes: dict[str, object], why: str
) -> None:
    with pytest.raises(SettingsError, match=f"^train.weights='{transport.backend}': .*{why}"):
        transport.check(replace(FITTING, **changes))  # type: ignore[arg-type]


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
            transport_of(kind).check_placed(["CPU"], ["H20"])
        with pytest.raises(WeightsError, match="placed every engine on CPU"):
            transport_of(kind).check_placed(["H800"], ["CPU", "CPU"])
    transport_of("local").check_placed(["CPU"], ["CPU"])


def test_only_engines_that_can_be_reached_ask_the_trainer() -> None:
    assert transport_of("nccl").sent_to("here", "H20", shares=False) == SentWeights("nccl", "here")
    assert transport_of("ipc").sent_to("here", "H20", shares=True) == SentWeights("ipc", "here")
    for weights, granted in (
        ("ipc", "H20"),
        ("nccl", CPU),
        ("local", "H20"),
        ("mooncake://10.0.0.1:1", "H20"),
    ):
        assert transport_of(weights).sent_to("here", granted, shares=False) is None
