"""The manifests of a box: its pod, and the policy that takes the network from all boxes."""

from __future__ import annotations

import math
import os
import re
import secrets
import socket
from pathlib import Path
from typing import Any

from rollart_flow.errors import SettingsError
from rollart_flow.sandbox.base import SandboxSpec
from rollart_flow.sandbox.kubernetes import first

BOX_LABEL = "rollart-flow/sandbox"
"""Label of every pod that is a box; the network policy chooses by it."""
OWNER_LABEL = "rollart-flow/owner"
"""Label of a pod with host and process id of its holder."""
CONTAINER = "box"
POLICY = "rollart-sandbox"
_OWN_MB = 64
"""Memory of the processes that serve a box [MiB]."""
_USERS = (100_000, 2_000_000_000)


def pod_manifest(spec: SandboxSpec) -> dict[str, Any]:
    """Return the pod of a new box.

    Each pod has a user of its own: the kernel counts the processes of a user over a whole node, and
    a pod has no other limit of them. One file system in memory holds the work folder, `/tmp` and
    `/dev/shm`.
    """
    limits = spec.limits
    user = _USERS[0] + secrets.randbelow(_USERS[1] - _USERS[0])
    mounts = {"work": spec.workdir, "tmp": "/tmp", "shm": "/dev/shm"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"rollart-box-{secrets.token_hex(8)}",
            "labels": {
                "app.kubernetes.io/managed-by": "rollart-flow",
                BOX_LABEL: "true",
                OWNER_LABEL: _owner(),
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": math.ceil(limits.lifetime_s),
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": "box",
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["127.0.0.1"]},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": user,
                "runAsGroup": user,
                "fsGroup": user,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(spec, mounts)],
            "volumes": [
                {
                    "name": "files",
                    "emptyDir": {"medium": "Memory", "sizeLimit": f"{limits.disk_mb}Mi"},
                }
            ],
        },
    }


def policy_manifest() -> dict[str, Any]:
    """Return the policy that forbids all boxes of a namespace to be reached or to reach others."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "podSelector": {"matchLabels": {BOX_LABEL: "true"}},
            "policyTypes": ["Ingress", "Egress"],
        },
    }


def check_pod(spec: SandboxSpec) -> None:
    """Refuse what a pod cannot have.

    Raises:
        SettingsError: names it.
    """
    if spec.image is None:
        raise SettingsError(
            "sandbox='kubernetes': name an image with python3 and sh; a cluster does not have the "
            "files of this machine"
        )
    for name, given in (
        ("mounts", spec.mounts),
        ("socket", spec.socket),
        ("writable", spec.writable),
    ):
        if given:
            raise SettingsError(f"sandbox='kubernetes': a pod cannot have {name}; leave it out")


def _container(spec: SandboxSpec, mounts: dict[str, str]) -> dict[str, Any]:
    limits = spec.limits
    code = Path(first.__file__).read_text()
    return {
        "name": CONTAINER,
        "image": spec.image,
        "command": ["python3", "-I", "-S", "-B", "-c", code, str(limits.lifetime_s)],
        "stdin": True,
        "stdinOnce": True,
        "workingDir": "/",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        },
        "resources": {
            "limits": {
                "cpu": f"{max(1, round(limits.cpus * 1000))}m",
                "memory": f"{limits.memory_mb + limits.disk_mb + _OWN_MB}Mi",
            },
            "requests": {
                "cpu": f"{max(1, round(limits.cpus * 100))}m",
                "memory": f"{limits.memory_mb + limits.disk_mb + _OWN_MB}Mi",
            },
        },
        "volumeMounts": [
            {"name": "files", "mountPath": path, "subPath": name} for name, path in mounts.items()
        ],
    }


def _owner() -> str:
    """Return host and process of this holder, as the value of a label."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40].strip("-.")
    return f"{host or 'host'}-{os.getpid()}"
