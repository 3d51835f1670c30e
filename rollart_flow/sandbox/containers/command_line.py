"""The arguments that start a container as a box.

The recipe: no network but its own loopback, a read-only root, no capability, no new privileges, the
program's own filter of system calls and that of `seccomp`, since Podman's allows new namespaces,
user `nobody`, and a control group that bounds memory, processes and processor time. Only the work
folder and `/tmp` can be written to, in memory.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path

from rollart_flow.sandbox.agent.runtime import VERSION
from rollart_flow.sandbox.agent.seccomp import filter_program
from rollart_flow.sandbox.base import SOCKET_PATH, SandboxSpec
from rollart_flow.sandbox.bubblewrap.command_line import RUNTIME_PATH
from rollart_flow.sandbox.containers.client import Client
from rollart_flow.sandbox.images.tree import NOBODY
from rollart_flow.sandbox.owner import owner_label, process_namespace

AGENT_PATH = "/run/rollart-agent.sock"
"""Path at which the agent of a box finds the socket of the holder."""
OWNER_LABEL = "rollart-flow.owner"
"""Label of a container with the label of its holder (`owner.owner_label`)."""
NAMESPACE_LABEL = "rollart-flow.process-namespace"
"""Label of a container with the namespace of its holder's process id."""
_OWN_PROCESSES = 2  # the agent, and the one that becomes a command
_FILES, _USER_PROCESSES = 4096, 16384
"""Limits that every host may set: open files of a process, processes of all boxes together."""


def run_arguments(
    client: Client,
    spec: SandboxSpec,
    name: str,
    image: str,
    runtime: Path,
    mounts: Mapping[str, str],
) -> list[str]:
    """Return the arguments that start the agent of a box.

    Args:
        client: Docker's or Podman's.
        spec: contents and limits of the box.
        name: name of the container.
        image: name or digest of an image on this machine.
        runtime: folder of `runtime.runtime_folder`.
        mounts: further files of the host, path in the box to host path.
    """
    limits = spec.limits
    memory = f"{limits.memory_mb + limits.disk_mb}m"
    cpus = min(limits.cpus, float(os.cpu_count() or 1))
    written = f"rw,exec,nosuid,nodev,size={limits.disk_mb}m,mode=1777,{client.owned}"
    hosts = {"/etc/hosts": str(runtime / "etc" / "hosts")}
    seen = {RUNTIME_PATH: str(runtime), **hosts, **mounts, **spec.mounts}
    if spec.socket is not None:
        seen[SOCKET_PATH] = spec.socket
    return [
        "run", "--rm", *client.run_options,
        "--name", name, "--hostname", "box", "--label", f"{OWNER_LABEL}={owner_label()}",
        "--label", f"{NAMESPACE_LABEL}={process_namespace()}",
        "--pull", "never", "--log-driver", "none", "--stop-timeout", "0",
        "--network", "none", "--read-only", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--user", f"{NOBODY}:{NOBODY}",
        "--memory", memory, "--memory-swap", memory, "--cpus", f"{max(cpus, 0.01):.2f}",
        "--pids-limit", str(limits.processes + _OWN_PROCESSES),
        "--ulimit", f"nofile={_FILES}:{_FILES}",
        "--ulimit", f"nproc={_USER_PROCESSES}:{_USER_PROCESSES}",
        "--shm-size", f"{limits.disk_mb}m",
        *(part for path in {"/tmp": "", spec.workdir: ""}
          for part in ("--tmpfs", f"{path}:{written}")),
        *(part for inside, outside in seen.items() for part in _mount(inside, outside)),
        "--workdir", "/", "--entrypoint", f"{RUNTIME_PATH}/loader", image,
        "--library-path", f"{RUNTIME_PATH}/lib", f"{RUNTIME_PATH}/python/bin/{VERSION}",
        "-I", "-S", "-B", f"{RUNTIME_PATH}/agent.pyc",
        AGENT_PATH, "0", "0", str(limits.lifetime_s), filter_program().hex(),
    ]  # fmt: skip


def _mount(inside: str, outside: str) -> tuple[str, str]:
    """Return the option that shows a path of the host read-only; it is a line of CSV."""
    line = io.StringIO()
    fields = ("type=bind", f"source={outside}", f"target={inside}", "readonly")
    csv.writer(line, lineterminator="").writerow(fields)
    return ("--mount", line.getvalue())
