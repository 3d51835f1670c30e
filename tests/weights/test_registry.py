"""Weight stores by name: what cannot be used is refused before anything runs."""

from pathlib import Path
from typing import Any

import pytest

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake
from rollart_flow.errors import MissingExtraError, PipelineError, WeightsError
from rollart_flow.weights import LocalWeightStore, open_weights
from rollart_flow.weights.mooncake import package
from tests.extras import with_mooncake
from tests.weights.conformance import tensors_of


def pipeline(weights: str, **transfer: Any) -> Pipeline:
    policy = Policy.tiny()
    batches = buffer(reward(rollout(tasks(FrozenLake(), group_size=8), policy)))
    return Pipeline("lake", train(batches, policy, grpo(), steps=1, weights=weights, **transfer))


@pytest.mark.parametrize(
    "weights",
    [
        "local",
        pytest.param("mooncake", marks=with_mooncake),
        pytest.param("mooncake://10.0.0.1:50051", marks=with_mooncake),
    ],
)
def test_a_pipeline_takes_every_store(weights: str) -> None:
    assert pipeline(weights).train.weights == weights


@pytest.mark.parametrize("weights", ["redis", "mooncake:1", "redis://10.0.0.1:1"])
def test_an_unknown_transport_is_refused_when_the_pipeline_is_built(weights: str) -> None:
    with pytest.raises(PipelineError, match=r"^train: train\.weights=.*local, mooncake"):
        pipeline(weights)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("mooncake://", "mooncake or mooncake://HOST:PORT"),
        ("mooncake://host", "mooncake or mooncake://HOST:PORT"),
        ("local://10.0.0.1:1", "local"),
    ],
)
def test_a_wrong_address_is_refused_when_the_pipeline_is_built(weights: str, expected: str) -> None:
    with pytest.raises(PipelineError) as refused:
        pipeline(weights)
    assert str(refused.value) == f"train: train.weights={weights!r}: expected {expected}"


def test_settings_of_a_transfer_that_are_not_used_are_refused() -> None:
    with pytest.raises(PipelineError, match="protocol='rdma' is a setting of weights='mooncake'"):
        pipeline("local", protocol="rdma")
    with pytest.raises(PipelineError, match="are not used by protocol='tcp'; take"):
        pipeline("mooncake", rdma_devices=("mlx5_0",))
    with pytest.raises(PipelineError, match="protocol"):
        pipeline("mooncake", protocol="carrier pigeon")
    with pytest.raises(PipelineError, match=r"expected mooncake$"):
        pipeline("mooncake?speed=fast")


def test_a_missing_package_is_refused_when_the_pipeline_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(package, "find_spec", lambda name: None)  # it is installed here
    pipeline("local")
    with pytest.raises(MissingExtraError, match=r"pip install rollart-flow\[mooncake\]"):
        pipeline("mooncake")


def test_at_rest_a_run_has_what_it_kept_on_disk(tmp_path: Path) -> None:
    LocalWeightStore(tmp_path / "weights").publish(3, tensors_of(3))
    assert open_weights("mooncake", str(tmp_path / "weights")).versions() == (3,)


def test_a_missing_library_is_refused_when_the_pipeline_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(package, "LIBRARY", "libnot-there.so.1")
    pipeline("local")
    with pytest.raises(MissingExtraError, match=r"libnot-there.so.1 cannot be loaded: apt install"):
        pipeline("mooncake")


@with_mooncake
def test_an_address_where_nobody_listens_is_refused_in_one_line(tmp_path: Path) -> None:
    store = open_weights("mooncake://127.0.0.1:9", str(tmp_path / "weights"))
    with pytest.raises(WeightsError, match="no Mooncake store answers at") as caught:
        store.publish(1, tensors_of(1))
    assert "\n" not in str(caught.value)
