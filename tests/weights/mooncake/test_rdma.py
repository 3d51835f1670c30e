"""RDMA is refused on a machine that has no device for it, in one line."""

from pathlib import Path

import pytest

from rollart_flow.errors import RollartError, SettingsError
from rollart_flow.weights.mooncake import rdma
from rollart_flow.weights.mooncake.client import MooncakeClient
from rollart_flow.weights.mooncake.servers import LEAST_SEGMENT_BYTES, MooncakeServers
from rollart_flow.weights.transport import TransferSettings
from tests.extras import with_mooncake
from tests.weights.test_registry import pipeline

RDMA = TransferSettings(protocol="rdma")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a machine with three devices: one is down, and one belongs to others.

    No machine at hand has a device, so files in the layout of Linux stand for them.
    """
    monkeypatch.setattr(rdma, "SYSTEM", tmp_path / "sys")
    monkeypatch.setattr(rdma, "DEVICES", tmp_path / "dev")
    (tmp_path / "dev").mkdir()
    for number, state in enumerate(["4: ACTIVE", "1: DOWN", "4: ACTIVE"]):
        verbs = tmp_path / "sys" / "infiniband_verbs" / f"uverbs{number}"
        port = tmp_path / "sys" / "infiniband" / f"mlx5_{number}" / "ports" / "1"
        verbs.mkdir(parents=True)
        port.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"mlx5_{number}\n")
        (port / "state").write_text(f"{state}\n")
        if number < 2:
            (tmp_path / "dev" / verbs.name).touch()


@pytest.mark.usefixtures("machine")
def test_a_device_counts_if_it_is_active_and_may_be_used() -> None:
    assert rdma.rdma_devices() == ("mlx5_0",)
    assert rdma.protocols() == "tcp; rdma: mlx5_0"
    rdma.check_protocol(RDMA)
    rdma.check_protocol(TransferSettings(protocol="rdma", rdma_devices=("mlx5_0",)))


@pytest.mark.usefixtures("machine")
def test_a_device_that_is_not_there_is_refused() -> None:
    wanted = TransferSettings(protocol="rdma", rdma_devices=("mlx5_0", "mlx5_1", "mlx5_9"))
    with pytest.raises(SettingsError) as refused:
        rdma.check_protocol(wanted)
    assert str(refused.value) == (
        "protocol='rdma': this machine has no active RDMA device mlx5_1, mlx5_9; there: mlx5_0; "
        "see `rollart doctor`, or take protocol='tcp'"
    )


@with_mooncake
def test_a_machine_without_a_device_refuses_pipelines_servers_and_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rdma, "SYSTEM", tmp_path)
    assert rdma.protocols() == "tcp; rdma: no active device"
    refused = "protocol='rdma': this machine has no active RDMA device; there: none"
    for use in (
        lambda: pipeline("mooncake", protocol="rdma"),
        lambda: MooncakeServers(LEAST_SEGMENT_BYTES, transfer=RDMA),
        lambda: MooncakeClient("127.0.0.1:1", RDMA),
    ):
        with pytest.raises(RollartError) as caught:
            use()
        assert refused in str(caught.value)
        assert "\n" not in str(caught.value)


@with_mooncake
@pytest.mark.usefixtures("machine")
def test_the_settings_are_reached_in_python_and_text() -> None:
    made = pipeline("mooncake", protocol="rdma", rdma_devices=("mlx5_0",))
    told = pipeline("mooncake").override(
        {"train.protocol": "rdma", "train.transfer.rdma_devices": '["mlx5_0"]'}
    )
    assert told.train.transfer == made.train.transfer
    name = "mooncake?protocol=rdma&rdma_devices=mlx5_0"
    assert told.train.weight_store == made.train.weight_store == name
    assert pipeline("mooncake").train.weight_store == "mooncake"
