"""The manifest of docs/cluster.md is a RayJob that Ray's autoscaler understands."""

import shlex

import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)

from tests.docs.pages import ROOT, blocks


def test_its_manifest_is_one_that_ray_understands() -> None:
    (text,) = [block.text for block in blocks("docs/cluster.md") if block.language == "yaml"]
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    entry = shlex.split(job["spec"]["entrypoint"])
    assert entry[:2] == ["rollart", "run"]
    assert (ROOT / entry[2]).exists()
    cluster = {"metadata": {"name": "rollart", "namespace": "default"}}
    config = _derive_autoscaling_config_from_ray_cr(
        {**cluster, "spec": job["spec"]["rayClusterSpec"]}
    )
    pools = config["available_node_types"]
    assert pools["headgroup"]["resources"]["CPU"] == 4
    assert pools["h800"]["resources"]["H800"] == 8
    assert pools["h20"]["resources"]["H20"] == 8
    assert (
        f"ray[data]>={job['spec']['rayClusterSpec']['rayVersion'][:4]}"
        in (ROOT / "pyproject.toml").read_text()
    )
