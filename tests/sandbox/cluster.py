"""A small server with the wire format of Kubernetes: pods, their streams, and access reviews.

Each pod is a container of Podman with what its manifest asks for, and an exec is Podman's, so
that every byte of the client is used and commands really run. It is no cluster: there is no
scheduler, no kubelet and no network plugin.
"""

import asyncio
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import WSMsgType, web

from rollart_flow.sandbox.agent.runtime import runtime_folder
from rollart_flow.sandbox.bubblewrap.command_line import RUNTIME_PATH
from rollart_flow.sandbox.containers.images import host_mounts

NAMESPACE = "boxes"
TOKEN = "token-of-the-test"
SCRATCH = TemporaryDirectory(prefix="rollart-cluster-")
"""Work folder of Podman's processes, one of which leaves a file `oom` there."""


class Server:
    """The cluster.

    Args:
        image: image of Podman that every pod has, whatever its manifest names.
    """

    def __init__(self, image: str) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.made: list[dict[str, Any]] = []
        """Every manifest that was posted, in order."""
        self.refused: set[str] = set()
        """Verbs that access reviews refuse."""
        self.open_network = False
        """Whether pods share the network of the host, as where no plugin enforces policies."""
        self.broken: dict[str, str] = {}
        """Reason and message with which the container of each pod waits instead of running."""
        self.port = 0
        self._image = image
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self.policies: set[str] = set()
        """Names of the policies that are there."""

    def application(self) -> web.Application:
        application = web.Application(middlewares=[_authorized])
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        policies = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
        application.router.add_post(pods, self._create)
        application.router.add_get(pods, self._watch)
        application.router.add_get(pods + "/{name}", self._read)
        application.router.add_delete(pods + "/{name}", self._delete)
        application.router.add_get(pods + "/{name}/attach", self._attach)
        application.router.add_get(pods + "/{name}/exec", self._exec)
        application.router.add_post(policies, self._policy)
        reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        application.router.add_post(reviews, self._review)
        return application

    async def _create(self, request: web.Request) -> web.Response:
        pod = await request.json()
        self.made.append(pod)
        name = pod["metadata"]["name"]
        status = {"name": "box", "image": pod["spec"]["containers"][0]["image"]}
        state: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        if self.broken:
            state = {"waiting": self.broken}
        else:
            self._running[name] = await self._start(name, pod["spec"])
        pod["status"] = {
            "phase": "Running",
            "containerStatuses": [{**_STATUS, **status, "state": state}],
        }
        self.pods[name] = pod
        return web.json_response(pod, status=201)

    async def _start(self, name: str, spec: dict[str, Any]) -> asyncio.subprocess.Process:
        """Run the container of a pod with its standard input open."""
        (container,) = spec["containers"]
        user, (volume,) = spec["securityContext"]["runAsUser"], spec["volumes"]
        size = volume["emptyDir"]["sizeLimit"].removesuffix("i").lower()
        memory = container["resources"]["limits"]["memory"].removesuffix("i").lower()
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        options = [
            "--interactive", "--rm", "--name", name, "--hostname", spec["hostname"],
            "--network", "host" if self.open_network else "none", "--read-only",
            "--read-only-tmpfs=false", "--security-opt", "no-new-privileges",
            "--cap-drop", *container["securityContext"]["capabilities"]["drop"],
            "--user", f"{user}:{user}", "--memory", memory, "--memory-swap", memory,
            "--stop-timeout", "0", "--workdir", container["workingDir"],
            "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=16384:16384",
        ]  # fmt: skip
        for mount in container["volumeMounts"]:
            options += ["--tmpfs", f"{mount['mountPath']}:rw,exec,size={size},notmpcopyup,U"]
        seen = {RUNTIME_PATH: str(runtime_folder()), **host_mounts()}
        for inside, outside in seen.items():
            options += ["--mount", f"type=bind,source={outside},target={inside},readonly"]
        env = {
            "PATH": f"{RUNTIME_PATH}/python/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": f"{RUNTIME_PATH}/lib",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
        }
        for key, value in env.items():
            options += ["--env", f"{key}={value}"]
        entry, *arguments = container["command"]
        process = await asyncio.create_subprocess_exec(
            "podman", "run", *options, "--entrypoint", entry, self._image, *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=SCRATCH.name,
        )  # fmt: skip
        while process.returncode is None:
            asked = await asyncio.create_subprocess_exec(
                "podman", "ps", "--quiet", "--filter", f"name={name}",
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            if (await asked.communicate())[0]:
                break
        return process

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        assert request.query["watch"].lower() == "true"
        field, _, name = request.query["fieldSelector"].partition("=")
        assert field == "metadata.name"
        response = web.StreamResponse()
        await response.prepare(request)
        event = {"type": "ADDED", "object": self.pods[name]}
        await response.write(json.dumps(event).encode() + b"\n")
        return response

    async def _read(self, request: web.Request) -> web.Response:
        return web.json_response(self.pods[request.match_info["name"]])

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.pods:
            return web.json_response({"message": f'pods "{name}" not found'}, status=404)
        assert request.query["gracePeriodSeconds"] == "0"
        if name in self._running:
            killing = await asyncio.create_subprocess_exec(
                "podman", "rm", "--force", "--ignore", "--time", "0", name,
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            await killing.wait()
            await self._running.pop(name).wait()
        return web.json_response(self.pods.pop(name))

    async def _attach(self, request: web.Request) -> web.WebSocketResponse:
        process = self._running[request.match_info["name"]]
        socket = await _streamed(request)
        ended = asyncio.create_task(process.wait())
        receiving = asyncio.create_task(socket.receive())
        while not ended.done():
            await asyncio.wait({ended, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                if receiving.result().type is not WSMsgType.BINARY:
                    break
                receiving = asyncio.create_task(socket.receive())
        receiving.cancel()
        assert process.stdin is not None
        process.stdin.close()  # stdinOnce
        await ended
        await socket.close()
        return socket

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        query = parse_qsl(request.query_string)
        command = [value for key, value in query if key == "command"]
        process = await asyncio.create_subprocess_exec(
            "podman", "exec", "--interactive", request.match_info["name"], *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=SCRATCH.name,
        )  # fmt: skip
        socket = await _streamed(request)
        feeding = asyncio.create_task(_feed(socket, process))
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(
            _forward(socket, 1, process.stdout), _forward(socket, 2, process.stderr)
        )
        code = await process.wait()
        status: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if code != 0:
            cause = {"reason": "ExitCode", "message": str(code)}
            status = {
                "metadata": {},
                "status": "Failure",
                "message": f"command terminated with non-zero exit code: {code}",
                "reason": "NonZeroExitCode",
                "details": {"causes": [cause]},
            }
        if not socket.closed:
            await socket.send_bytes(b"\3" + json.dumps(status).encode())
        await socket.close()
        await feeding
        return socket

    async def _policy(self, request: web.Request) -> web.Response:
        policy = await request.json()
        name = policy["metadata"]["name"]
        if name in self.policies:
            return web.json_response({"message": f'"{name}" already exists'}, status=409)
        self.policies.add(name)
        self.made.append(policy)
        return web.json_response(policy, status=201)

    async def _review(self, request: web.Request) -> web.Response:
        review = await request.json()
        verb = review["spec"]["resourceAttributes"]["verb"]
        return web.json_response(
            {**review, "status": {"allowed": verb not in self.refused}}, status=201
        )


_STATUS = {"imageID": "", "ready": True, "restartCount": 0}


@web.middleware
async def _authorized(request: web.Request, handler: Any) -> Any:
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        return web.json_response({"message": "Unauthorized"}, status=401)
    return await handler(request)


async def _streamed(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
    await socket.prepare(request)
    assert socket.ws_protocol == "v4.channel.k8s.io"
    return socket


async def _feed(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    """Pass the standard input on until the client goes away, which closes it."""
    assert process.stdin is not None
    async for message in socket:
        assert message.data[0] == 0
        process.stdin.write(message.data[1:])
        await process.stdin.drain()
    process.stdin.close()


async def _forward(
    socket: web.WebSocketResponse, channel: int, stream: asyncio.StreamReader
) -> None:
    while data := await stream.read(1 << 15):
        if not socket.closed:
            await socket.send_bytes(struct.pack("B", channel) + data)


@contextmanager
def serving(image: str, folder: Path) -> Iterator[Server]:
    """Serve a cluster on loopback in a thread; KUBECONFIG names it meanwhile."""
    server = Server(image)
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(server.application())

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    server.port = loop.run_until_complete(start())
    thread = Thread(target=loop.run_forever)
    thread.start()
    settings = folder / "kubeconfig"
    settings.write_text(json.dumps(_kubeconfig(server.port)))
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(settings)
    try:
        yield server
    finally:
        del os.environ["KUBECONFIG"]
        if before is not None:
            os.environ["KUBECONFIG"] = before
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _kubeconfig(port: int) -> dict[str, Any]:
    context = {"cluster": "test", "user": "test", "namespace": NAMESPACE}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "test", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": context}],
    }
