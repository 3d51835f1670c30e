"""Kubernetes as a variant of `SANDBOXES`."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rollart_flow.errors import SettingsError
from rollart_flow.registry import Requirement
from rollart_flow.sandbox.base import Sandbox, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.bubblewrap.command_line import check_spec
from rollart_flow.sandbox.kubernetes.box import PodSandbox
from rollart_flow.sandbox.kubernetes.cluster import (
    KUBECONFIG,
    ClusterConnection,
    in_cluster,
    own_namespace,
)
from rollart_flow.sandbox.kubernetes.pod import check_pod, pod_manifest
from rollart_flow.sandbox.variant import SandboxVariant

READY_S = 600.0
"""Longest time for a pod to run, the pull of its image included [s]."""
_ATTEMPTS = 10
_TIMEOUT_S = 5.0
_RIGHTS = (
    ("create", "", "pods", ""),
    ("delete", "", "pods", ""),
    ("watch", "", "pods", ""),
    ("create", "", "pods", "exec"),
    ("create", "", "pods", "attach"),
    ("create", "networking.k8s.io", "networkpolicies", ""),
)


class KubernetesVariant(SandboxVariant):
    """Boxes that are pods of a cluster, in the namespace of the current context."""

    requirements = (Requirement("kubernetes", ("kubernetes",), "kubernetes"),)
    shows_host_files = False

    def __init__(self) -> None:
        self._sealed: set[str] = set()

    def version(self) -> str | None:
        try:
            return version("kubernetes")
        except PackageNotFoundError:
            return None

    def problem(self) -> str:
        if self.version() is None:
            return "the package kubernetes is missing: pip install 'rollart-flow[kubernetes]'"
        return _problem()

    async def create(self, spec: SandboxSpec, snapshot: SandboxSnapshot | None) -> Sandbox:
        check_pod(spec)
        check_spec(spec)
        cluster = await ClusterConnection.connect()
        manifest = pod_manifest(spec)
        name = manifest["metadata"]["name"]
        box: PodSandbox | None = None
        try:
            await cluster.forbid_network()
            await cluster.create(manifest, READY_S)
            box = PodSandbox(spec, name, cluster, await cluster.attach(name))
            await self._check_network(box, cluster.namespace)
            if snapshot is not None:
                await box.restore(snapshot)
        except BaseException:
            if box is not None:
                await box.close()
            else:
                await _give_up(cluster, name)
            raise
        return box

    async def _check_network(self, box: PodSandbox, namespace: str) -> None:
        """Refuse a cluster that does not enforce the policy; the first box of a namespace tries.

        Raises:
            SettingsError: the box reaches the cluster's own interface.
        """
        if namespace in self._sealed:
            return
        if reached := await box.reached(_ATTEMPTS):
            raise SettingsError(
                f"sandbox='kubernetes': a box reaches {reached}; the network plugin of the cluster "
                "does not enforce NetworkPolicy"
            )
        self._sealed.add(namespace)


async def _give_up(cluster: ClusterConnection, name: str) -> None:
    try:
        await cluster.delete(name)
    finally:
        await cluster.close()


@cache
def _problem() -> str:
    """Return why no pod can be made; the cluster is asked for the rights."""
    import urllib3
    from kubernetes import client, config

    try:
        configuration = client.Configuration()
        configuration.retries = 0
        if in_cluster():
            config.load_incluster_config(client_configuration=configuration)
        else:
            place = os.environ.get(KUBECONFIG)
            config.load_kube_config(place, client_configuration=configuration)
        namespace = own_namespace()
        with client.ApiClient(configuration) as connection:
            missing = _missing_rights(client.AuthorizationV1Api(connection), namespace)
    except (config.ConfigException, OSError) as error:
        return f"no cluster is configured: set KUBECONFIG ({error})"
    except (client.ApiException, urllib3.exceptions.HTTPError) as error:
        return f"the cluster does not answer: {' '.join(str(error).split())[:200]}"
    rights = ", ".join(missing)
    return f"namespace {namespace!r} does not allow this user to {rights}" if missing else ""


def _missing_rights(reviews: Any, namespace: str) -> list[str]:
    missing = []
    for verb, group, resource, part in _RIGHTS:
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
        body = {"spec": {"resourceAttributes": {**attributes, "subresource": part}}}
        review = reviews.create_self_subject_access_review(body, _request_timeout=_TIMEOUT_S)
        if not review.status.allowed:
            missing.append(f"{verb} {resource}{'/' if part else ''}{part}")
    return missing


VARIANT = KubernetesVariant()
