"""Settings of a task folder that a box can give; everything else is refused in one line."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from rollart_flow.envs.swe.harbor.task_config import EnvironmentTable
from rollart_flow.envs.swe.harbor.task_folder import TaskFolder, TaskStep, expanded_env
from rollart_flow.errors import EnvironmentFailedError, ImageError, SettingsError
from rollart_flow.sandbox.base import SandboxLimits, SandboxSpec
from rollart_flow.sandbox.images.build import build_image
from rollart_flow.sandbox.images.settings import default_cache

_WORKDIR = "/app"
HOST = "host"
"""Name of an image that stands for the host's `/usr`."""
_ROOT = (None, "root", 0, "0")


def check_supported(
    folder: TaskFolder, images: Mapping[str, str], *, refuses_network: bool
) -> None:
    """Refuse a task that needs more than a box.

    Args:
        folder: the task.
        images: images of the cache by the name that a task gives them.
        refuses_network: whether a task that asks for a network is refused.

    Raises:
        SettingsError: says what the task needs, and what to do.
    """
    for problem in _problems(folder, images, refuses_network):
        raise SettingsError(f"task {folder.task_id!r}: {problem}")
    environment_env(folder)
    for step in folder.steps:
        verifier_env(folder, step)


def box_of(
    folder: TaskFolder, images: Mapping[str, str], *, memory_mb: int, disk_mb: int
) -> SandboxSpec:
    """Return the box of a task's environment, whose image is built once for its contents.

    Args:
        folder: the task.
        images: images of the cache by the name that a task gives them.
        memory_mb: memory where the task says nothing of it [MiB].
        disk_mb: largest size of its files [MiB].

    Raises:
        EnvironmentFailedError: a step of its Dockerfile failed.
        SandboxError: the box of the steps could not be started, or has ended.
    """
    table = folder.config.environment
    image = _built(folder, images)
    return SandboxSpec(
        image=image,
        writable=image is not None,
        workdir=table.workdir or _workdir(image),
        env=environment_env(folder),
        limits=SandboxLimits(
            memory_mb=table.memory_mb or memory_mb,
            disk_mb=min(table.storage_mb or disk_mb, disk_mb),
            cpus=table.cpus or 1.0,
        ),
    )


def _built(folder: TaskFolder, images: Mapping[str, str]) -> str | None:
    """Return the digest of a task's image; None for the host's `/usr` without changes."""
    name = folder.config.environment.docker_image
    base = images.get(name or folder.base, images.get("*", HOST))
    if not name and not folder.base:
        return None
    context = folder.path / "environment"
    seconds = folder.config.environment.build_timeout_sec
    try:
        if not name:
            return build_image(context, base=base, timeout_s=seconds)
        with tempfile.TemporaryDirectory() as empty:
            (Path(empty) / "Dockerfile").write_text(f"FROM {base}\n")
            return build_image(empty)
    except ImageError as error:
        raise EnvironmentFailedError(f"task {folder.task_id!r}: {error}") from error


def _workdir(image: str | None) -> str:
    if image is None:
        return _WORKDIR
    with default_cache().acquire(image) as lease:
        return lease.about.config.workdir or _WORKDIR


def environment_env(folder: TaskFolder) -> dict[str, str]:
    """Return the variables of a task's environment; see `expanded_env`."""
    env = folder.config.environment.env
    return expanded_env(env, f"task {folder.task_id!r}: environment.env")


def verifier_env(folder: TaskFolder, step: TaskStep) -> dict[str, str]:
    """Return the variables of a step's verifier; see `expanded_env`."""
    return expanded_env(step.verifier.env, f"task {folder.task_id!r}: verifier.env")


def _problems(
    folder: TaskFolder, images: Mapping[str, str], refuses_network: bool
) -> Iterator[str]:
    config = folder.config
    name = config.environment.docker_image or folder.base
    if name not in ("", HOST) and name not in images and "*" not in images:
        yield (
            f"it needs the image {name!r}; add one to the cache of images and name it, such as "
            f"images=(({name!r}, 'sha256:...'),), or 'host' for the host's /usr"
        )
    yield from _lacks(config.environment)
    tables = [table for step in folder.steps for table in (step.agent, step.verifier)]
    asks = config.environment.wants_network or any(table.wants_network for table in tables)
    if asks and refuses_network:
        yield "it asks for a network, which boxes do not have"
    for verifier in (step.verifier for step in folder.steps):
        if verifier.environment is not None:
            yield "a verifier with an environment of its own needs a container"
        if any(hook.service for hook in verifier.collect):
            yield "collect hooks in a service need several containers"
        users = (verifier.user, *(hook.user for hook in verifier.collect))
        if any(user not in _ROOT for user in users):
            yield "it names a user for the verifier; a box has one user"
    if any(step.agent.user not in _ROOT for step in folder.steps):
        yield "it names a user for the agent; a box has one user"
    if any(artifact.service for step in folder.steps for artifact in step.artifacts):
        yield "artifacts of a service need several containers"


def _lacks(table: EnvironmentTable) -> Iterator[str]:
    if table.os != "linux":
        yield f"it needs {table.os}; boxes are Linux"
    if table.gpus or table.gpu_types:
        yield "it needs a GPU, which boxes do not have"
    if table.mcp_servers:
        yield "it needs MCP servers, which boxes do not have"
