"""Boxes of Kubernetes, on a server with its wire format whose pods are containers of Podman."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_flow.errors import SandboxError, SandboxFileError, SettingsError
from rollart_flow.sandbox.agent.runtime import runtime_folder
from rollart_flow.sandbox.base import KilledBy, Sandbox, SandboxLimits, SandboxSpec
from rollart_flow.sandbox.containers import variant as containers
from rollart_flow.sandbox.containers.client import Client
from rollart_flow.sandbox.containers.images import host_image
from rollart_flow.sandbox.kubernetes import variant as kubernetes
from rollart_flow.sandbox.kubernetes.pod import check_pod
from rollart_flow.sandbox.kubernetes.variant import VARIANT
from rollart_flow.sandbox.registry import create_sandbox
from tests.sandbox import daemons
from tests.sandbox.cluster import Server, serving
from tests.sandbox.conformance import SandboxConformance
from tests.sandbox.hostile import LIMITS, run

IMAGE = "python:3.12-slim"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with daemons.podman() as missing:
        containers._problem.cache_clear()
        if missing or (missing := containers.PODMAN.problem()):
            pytest.skip(missing)
        image = host_image(Client("podman", ""), runtime_folder()).identity
        with serving(image, tmp_path_factory.mktemp("cluster")) as server:
            kubernetes._problem.cache_clear()
            yield server
        kubernetes._problem.cache_clear()


@pytest.mark.whole
@pytest.mark.usefixtures("server")
class TestKubernetes(SandboxConformance):
    variant = "kubernetes"
    image = IMAGE

    def test_a_box_sees_what_its_spec_names(self, tmp_path: Path) -> None:
        async def test(box: Sandbox) -> None:
            assert (await box.exec("echo $NAME; pwd; env")).stdout.startswith("value\n/elsewhere\n")
            assert "KUBERNETES" not in (await box.exec("env")).stdout

        self.play(test, SandboxSpec(image=IMAGE, workdir="/elsewhere", env={"NAME": "value"}))


def test_a_pod_is_a_box(server: Server, tmp_path: Path) -> None:
    """The essence of the conformance tests, in one box, and what the cluster was sent."""
    server.made.clear()
    server.policies.clear()
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "file").write_text("text")

    async def test() -> None:
        limits = SandboxLimits(memory_mb=100, disk_mb=8, processes=20, cpus=0.5, lifetime_s=99.5)
        box = await create_sandbox(SandboxSpec(image=IMAGE, limits=limits), variant="kubernetes")
        try:
            result = await box.exec("cat; echo error >&2; kill -9 $$", stdin=b"given")
            assert (result.exit_code, result.stdout, result.stderr) == (-9, "given", "error\n")
            await box.upload(tmp_path / "up", "up")
            await box.exec("cp up/file up/more")
            await box.download("up", tmp_path / "down")
            with pytest.raises(SandboxFileError, match="full"):
                await box.write("large", bytes(9 << 20))
            escape = "setsid sh -c 'setsid sleep 99 & sleep 99' & sleep 99"
            result = await box.exec(escape, timeout_s=1)
            assert (result.killed_by, await box.processes()) == (KilledBy.TIME, 0)
            result = await box.exec(["python3", "-c", "import os; os.kill(-1, 9)"])
            assert not result.ok
            forks = "for i in $(seq 40); do sleep 99 & done"
            await box.exec(forks)
            assert 0 < await box.processes() <= 20
            await box.kill_all()
            assert await box.processes() == 0
        finally:
            await box.close()
        with pytest.raises(SandboxError, match="ended"):
            await box.exec("true")

    asyncio.run(test())
    assert (tmp_path / "down" / "more").read_text() == "text"
    assert server.pods == {}
    policy, pod = server.made
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["activeDeadlineSeconds"] == 100
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "172Mi"}
    assert spec["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Mi"}
    assert pod["metadata"]["labels"]["rollart-flow/owner"].endswith(f"-{os.getpid()}")


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("name", ["the-agent", "nested-namespaces", "privileges", "leftovers"])
def test_a_hostile_program_is_contained(name: str) -> None:
    spec = SandboxSpec(image=IMAGE, limits=LIMITS)
    assert asyncio.run(run(name, "kubernetes", spec)) == ""


def test_a_cluster_that_does_not_enforce_the_policy_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "open_network", True)
    monkeypatch.setattr(VARIANT, "_sealed", set())
    monkeypatch.setattr(kubernetes, "_ATTEMPTS", 1)
    with pytest.raises(SettingsError, match="does not enforce NetworkPolicy"):
        asyncio.run(create_sandbox(SandboxSpec(image=IMAGE), variant="kubernetes"))
    assert server.pods == {}


@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        ("ImagePullBackOff", 'Back-off pulling image "x"', "needs python3 and sh .Back-off"),
        ("CreateContainerError", 'exec: "python3": executable file not found', "python3"),
    ],
)
def test_an_image_that_does_not_start_is_refused(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    message: str,
    said: str,
) -> None:
    monkeypatch.setattr(server, "broken", {"reason": reason, "message": message})
    with pytest.raises(SettingsError, match=said):
        asyncio.run(create_sandbox(SandboxSpec(image="x"), variant="kubernetes"))
    assert server.pods == {}


def test_missing_rights_are_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "refused", {"delete"})
    kubernetes._problem.cache_clear()
    assert VARIANT.problem() == "namespace 'boxes' does not allow this user to delete pods"
    monkeypatch.setattr(server, "refused", set())
    kubernetes._problem.cache_clear()
    assert VARIANT.problem() == ""


def test_no_cluster_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    kubernetes._problem.cache_clear()
    said = VARIANT.problem()
    kubernetes._problem.cache_clear()
    assert said.startswith("no cluster is configured: set KUBECONFIG (")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SandboxSpec(), "name an image"),
        (SandboxSpec(image="x", mounts={"/a": "/usr"}), "cannot have mounts"),
        (SandboxSpec(image="x", socket="/a"), "cannot have socket"),
        (SandboxSpec(image="x", writable=True), "cannot have writable"),
    ],
)
def test_what_a_pod_cannot_have_is_refused(spec: SandboxSpec, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_pod(spec)
