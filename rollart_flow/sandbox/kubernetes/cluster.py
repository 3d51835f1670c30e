"""The cluster's interface, as a box uses it: pods, and streams over websockets.

Channels of a stream are the first byte of each message (protocol `v4.channel.k8s.io`): 0 is the
standard input, 1 and 2 are the outputs, and 3 is a status at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollart_flow.errors import SandboxError, SettingsError
from rollart_flow.sandbox.kubernetes.pod import CONTAINER, POLICY, policy_manifest
from rollart_flow.timeouts import timeout

KUBECONFIG = "KUBECONFIG"
"""Environment variable with the files that name clusters, as for kubectl."""
_SERVICE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_HEARTBEAT_S = 20.0
"""Time between two signs of life on a stream, so that nothing between closes it [s]."""
_WATCH_S = 3600.0
_PIECE = 1 << 15
_GONE, _EXISTS = 404, 409
_BROKEN = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError",
           "CreateContainerError", "RunContainerError", "ErrImageNeverPull")  # fmt: skip


class ClusterConnection:
    """A connection of one event loop to the cluster that the environment names.

    Invariant: `close` closes every connection.
    """

    def __init__(self, configuration: Any, namespace: str) -> None:
        from kubernetes.aio import client, stream

        self.namespace = namespace
        self._plain = client.ApiClient(configuration)
        self._streams = stream.WsApiClient(configuration, heartbeat=_HEARTBEAT_S)
        self._pods = client.CoreV1Api(self._plain)
        self._networking = client.NetworkingV1Api(self._plain)
        self._execs = client.CoreV1Api(self._streams)

    @classmethod
    async def connect(cls) -> ClusterConnection:
        """Return a connection to the cluster of KUBECONFIG, or to the one this process runs in.

        Raises:
            SettingsError: neither is there.
        """
        from kubernetes.aio import client, config

        configuration = client.Configuration()
        try:
            if in_cluster():
                config.load_incluster_config(client_configuration=configuration)
            else:
                place = os.environ.get(KUBECONFIG)
                await config.load_kube_config(place, client_configuration=configuration)
            namespace = await asyncio.to_thread(own_namespace)
        except (config.ConfigException, OSError) as error:
            raise SettingsError(f"sandbox='kubernetes': {error}") from error
        return cls(configuration, namespace)

    async def forbid_network(self) -> None:
        """Make the policy that takes the network from boxes, if it is not there."""
        try:
            await self._networking.create_namespaced_network_policy(
                self.namespace, policy_manifest()
            )
        except Exception as error:
            if getattr(error, "status", None) != _EXISTS:
                raise _boxed(f"network policy {POLICY}", error) from error

    async def create(self, manifest: dict[str, Any], ready_s: float) -> None:
        """Create a pod and wait until its container runs.

        Raises:
            SettingsError: its image cannot be had or lacks python3.
            SandboxError: it does not run in time.
        """
        name = manifest["metadata"]["name"]
        try:
            async with timeout(ready_s):
                await self._pods.create_namespaced_pod(self.namespace, manifest)
                await self._running(name)
        except TimeoutError:
            raise SandboxError(f"pod {name} does not run after {ready_s:g} s") from None
        except (SandboxError, SettingsError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise _boxed(f"pod {name}", error) from error

    async def _running(self, name: str) -> None:
        """Watch a pod until its container runs."""
        while True:
            events = await self._pods.list_namespaced_pod_without_preload_content(
                self.namespace,
                field_selector=f"metadata.name={name}",
                watch=True,
                _request_timeout=_WATCH_S,
            )
            try:
                async for line in events.content:
                    if _runs(json.loads(line)["object"]):
                        return
            finally:
                events.close()

    async def end_reason(self, name: str) -> str:
        """Return the reason that the cluster gives for the end of a pod, empty if none."""
        try:
            pod = (await self._pods.read_namespaced_pod(name, self.namespace)).to_dict()
        except Exception:  # noqa: BLE001 - there is no reason then
            return ""
        states = (status["state"] for status in pod["status"]["container_statuses"] or ())
        ended = next((state["terminated"] for state in states if state.get("terminated")), None)
        return str((ended or {}).get("reason") or pod["status"]["reason"] or "")

    async def delete(self, name: str) -> None:
        """Delete a pod at once; one that is gone is no error."""
        try:
            await self._pods.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)
        except Exception as error:
            if getattr(error, "status", None) != _GONE:
                raise _boxed(f"pod {name}", error) from error

    async def attach(self, name: str) -> Any:
        """Return an open websocket to the standard input of a pod's first process."""
        context = await self._execs.connect_get_namespaced_pod_attach_without_preload_content(
            name, self.namespace, container=CONTAINER,
            stdin=True, stdout=True, stderr=False, tty=False,
        )  # fmt: skip
        try:
            return await context
        except Exception as error:
            raise _boxed(f"pod {name}", error) from error

    async def exec(
        self, name: str, command: tuple[str, ...], given: bytes, most: int
    ) -> tuple[bytes, dict[str, Any]]:
        """Run a command in a pod; return its output and its status.

        Args:
            name: of the pod.
            command: program with arguments.
            given: its standard input, which stays open behind it.
            most: bytes of output, above which the pod is not to be trusted.

        Raises:
            SandboxError: the pod is gone, the connection was lost, or there is too much output.
        """
        context = await self._execs.connect_get_namespaced_pod_exec_without_preload_content(
            name, self.namespace, command=list(command), container=CONTAINER,
            stdin=True, stdout=True, stderr=True, tty=False,
        )  # fmt: skip
        output = bytearray()
        try:
            async with context as socket:
                for start in range(0, len(given), _PIECE):
                    await socket.send_bytes(b"\0" + given[start : start + _PIECE])
                async for message in socket:
                    data = _raw(message.data)
                    if data[:1] == b"\1":
                        output += data[1:]
                    if data[:1] == b"\3":
                        return bytes(output), json.loads(data[1:])
                    if len(output) > most:
                        raise SandboxError(f"pod {name} gave more than {most} bytes")
        except (SandboxError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise _boxed(f"pod {name}", error) from error
        raise SandboxError(f"pod {name}: the connection was lost")

    async def close(self) -> None:
        """Close all connections."""
        await self._streams.close()
        await self._plain.close()


def in_cluster() -> bool:
    """Whether this process runs in a pod and no variable names another cluster."""
    return KUBECONFIG not in os.environ and _SERVICE.exists()


def own_namespace() -> str:
    """Return the namespace of this pod, or that of the current context."""
    from kubernetes import config

    if in_cluster():
        return _SERVICE.read_text().strip()
    _, context = config.list_kube_config_contexts(os.environ.get(KUBECONFIG))
    return str(context["context"].get("namespace", "default"))


def _runs(pod: dict[str, Any]) -> bool:
    """Whether a pod's container runs.

    Raises:
        SettingsError: its image cannot be had, or its Python does not start.
        SandboxError: it has ended.
    """
    for status in pod.get("status", {}).get("containerStatuses") or ():
        state = status["state"]
        waiting, ended = state.get("waiting") or {}, state.get("terminated")
        if "running" in state and state["running"] is not None:
            return True
        about = ended or waiting
        said = " ".join(str(about.get("message") or about.get("reason")).split())
        if waiting.get("reason") in _BROKEN or "python3" in said:
            raise SettingsError(
                f"sandbox='kubernetes': image {status['image']!r} does not start; it needs "
                f"python3 and sh ({said})"
            )
        if ended is not None:
            raise SandboxError(f"the sandbox did not start: {said}")
    return False


def _raw(data: Any) -> bytes:
    return data.encode() if isinstance(data, str) else bytes(data)


def _boxed(about: str, error: Exception) -> SandboxError:
    """Return an error of the cluster as one of the box, in one line."""
    said = str(error)
    with suppress(ValueError, KeyError, TypeError):
        said = json.loads(getattr(error, "body", None) or "")["message"]
    return SandboxError(f"{about}: {' '.join(said.split())[:500]}")
