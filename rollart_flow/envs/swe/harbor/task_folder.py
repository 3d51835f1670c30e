"""A task folder, read whole and identified by the digest of everything in it.

task.toml  instruction.md  environment/  tests/test.sh  solution/solve.sh  steps/NAME/...
"""

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollart_flow.envs.swe.harbor.task_config import (
    AgentTable,
    Artifact,
    Healthcheck,
    TaskConfig,
    VerifierTable,
    parse_config,
)
from rollart_flow.errors import EnvironmentFailedError, ImageError, SettingsError
from rollart_flow.sandbox.images.dockerfile import parse

_MAX_TEXT_BYTES = 1 << 20
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class TaskStep:
    """One instruction with what judges it; a task without steps has one, without a name."""

    name: str
    instruction: str
    tests: Path
    solution: Path
    agent: AgentTable
    verifier: VerifierTable
    artifacts: tuple[Artifact, ...]
    healthcheck: Healthcheck | None = None
    min_reward: float | Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """A task folder as it was when it was read."""

    path: Path
    digest: str
    config: TaskConfig
    steps: tuple[TaskStep, ...]
    base: str
    """Image after FROM of its Dockerfile; empty without one."""

    @property
    def task_id(self) -> str:
        """The name that the task gives itself, or the name of the folder."""
        return self.config.task.name if self.config.task is not None else self.path.name

    def check(self) -> None:
        """Refuse a folder that has changed.

        Raises:
            EnvironmentFailedError: its digest is another one than when it was read.
        """
        if folder_digest(self.path) != self.digest:
            raise EnvironmentFailedError(f"the task folder {self.path} has changed; read it again")


def read_task_folder(path: Path) -> TaskFolder:
    """Return a task folder.

    Raises:
        SettingsError: a part is missing or wrong; names it.
    """
    digest = folder_digest(path)
    config = parse_config(_text(path / "task.toml"), str(path / "task.toml"))
    environment = path / "environment"
    composed = [name for name in _COMPOSE if (environment / name).exists()]
    if composed:
        raise SettingsError(f"{environment / composed[0]} needs several containers, not a box")
    dockerfile = environment / "Dockerfile"
    base = _checked_base(dockerfile) if dockerfile.exists() else ""
    return TaskFolder(path, digest, config, _steps(path, config), base)


def _checked_base(dockerfile: Path) -> str:
    """Return the image after FROM of a Dockerfile whose instructions are all supported."""
    try:
        return parse(_text(dockerfile), {}, "").base
    except ImageError as error:
        raise SettingsError(f"{dockerfile.parent}: {error}") from error


_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


def folder_digest(path: Path) -> str:
    """Return the SHA-256 of the paths, contents, modes and links of a folder, as hex digits.

    Raises:
        SettingsError: it cannot be read, or holds something else than files, folders and links.
    """
    digest = hashlib.sha256()
    try:
        for file in _all_files(path):
            about = file.lstat()
            name = file.relative_to(path).as_posix()
            if stat.S_ISLNK(about.st_mode):
                inner = "link " + os.readlink(file)
            elif stat.S_ISREG(about.st_mode):
                inner = hashlib.sha256(file.read_bytes()).hexdigest()
            else:
                raise SettingsError(f"{file} is no regular file")
            digest.update(f"{name}\0{about.st_mode & 0o111:o} {inner}\n".encode())
    except OSError as error:
        raise SettingsError(f"the task folder {path} cannot be read: {error}") from error
    return digest.hexdigest()


def expanded_env(env: Mapping[str, str], where: str) -> dict[str, str]:
    """Return variables with `${VAR}` and `${VAR:-default}` replaced from the environment.

    Raises:
        SettingsError: a variable without a default is not set.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise SettingsError(
                f"{where} needs the environment variable {match[1]}; set it, and name it in environ"
            )
        return found

    return {key: _VARIABLE.sub(value, text) for key, text in env.items()}


def _steps(path: Path, config: TaskConfig) -> tuple[TaskStep, ...]:
    if not config.steps:
        return (_checked(TaskStep(
            "", _text(path / "instruction.md"), path / "tests", path / "solution",
            config.agent, config.verifier, config.artifacts,
        )),)  # fmt: skip
    found = []
    for step in config.steps:
        folder = path / "steps" / step.name
        agent = step.agent if step.agent.model_fields_set else config.agent
        verifier = step.verifier if step.verifier.model_fields_set else config.verifier
        artifacts = (*config.artifacts, *step.artifacts)
        found.append(_checked(TaskStep(
            step.name, _text(folder / "instruction.md"), folder / "tests", folder / "solution",
            agent, verifier, artifacts, step.healthcheck, step.min_reward,
        )))  # fmt: skip
    return tuple(found)


def _checked(step: TaskStep) -> TaskStep:
    if not (step.tests / "test.sh").is_file():
        raise SettingsError(f"{step.tests / 'test.sh'} is missing; nothing judges the task")
    return step


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_TEXT_BYTES:
            raise SettingsError(f"{path} is larger than {_MAX_TEXT_BYTES >> 20} MiB")
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error


def _all_files(path: Path) -> list[Path]:
    found = []
    for root, folders, names in os.walk(path, onerror=_raise):
        links = [name for name in folders if Path(root, name).is_symlink()]
        found += [Path(root, name) for name in (*names, *links)]
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error
