"""The tables of `task.toml`, schema 1.4, with the old spellings of earlier versions.

Every known field is checked, and an unknown one is an error: a misspelled limit would be no limit.
"""

import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from rollart_flow.errors import SettingsError

Seconds: TypeAlias = Annotated[float, Field(gt=0)]
User: TypeAlias = str | int | None
Network: TypeAlias = Literal["public", "no-network", "allowlist"]
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?$", re.IGNORECASE)
_MEBIBYTES = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


class Table(BaseModel):
    """A table whose fields are all known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NetworkTable(Table):
    """A table that says who may reach the network."""

    network_mode: Network | None = None
    allowed_hosts: tuple[str, ...] = ()

    @property
    def wants_network(self) -> bool:
        """Whether it names a network in so many words."""
        return self.network_mode in ("public", "allowlist") or bool(self.allowed_hosts)


class About(Table):
    """`[task]`."""

    name: str
    version: str | None = None
    description: str = ""
    authors: tuple[str | Mapping[str, str], ...] = ()
    keywords: tuple[str, ...] = ()

    @field_validator("name")
    @classmethod
    def _two_parts(cls, name: str) -> str:
        if not _NAME.match(name):
            raise ValueError(f"{name!r} is no name such as org/name")
        return name


class AgentTable(NetworkTable):
    """`[agent]`."""

    timeout_sec: Seconds = 600.0
    user: User = None


class Healthcheck(Table):
    """`healthcheck` of an environment or step."""

    command: str
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Annotated[float, Field(ge=0)] = 0.0
    retries: Annotated[int, Field(ge=1)] = 3


class McpServer(Table):
    """An entry of `mcp_servers`."""

    name: str
    transport: Literal["stdio", "sse", "streamable-http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()


class EnvironmentTable(NetworkTable):
    """`[environment]` and `[verifier.environment]`."""

    docker_image: str | None = None
    build_timeout_sec: Seconds = 600.0
    os: str = "linux"
    cpus: Annotated[float, Field(gt=0)] | None = None
    memory_mb: Annotated[int, Field(ge=1)] | None = Field(
        default=None, validation_alias=AliasChoices("memory_mb", "memory")
    )
    storage_mb: Annotated[int, Field(ge=1)] | None = Field(
        default=None, validation_alias=AliasChoices("storage_mb", "storage")
    )
    gpus: Annotated[int, Field(ge=0)] = 0
    gpu_types: tuple[str, ...] | None = None
    workdir: str | None = None
    env: Mapping[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    healthcheck: Healthcheck | None = None
    allow_internet: bool | None = None

    @field_validator("memory_mb", "storage_mb", mode="before")
    @classmethod
    def _mebibytes(cls, value: object) -> object:
        """Read sizes such as "2G", as older files have them."""
        if not isinstance(value, str):
            return value
        match = _SIZE.match(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is no size such as 2G")
        return max(1, round(float(match[1]) * _MEBIBYTES[match[2].upper()]))

    @property
    def wants_network(self) -> bool:
        return super().wants_network or bool(self.allow_internet)


class Collect(Table):
    """An entry of `[[verifier.collect]]`."""

    command: str
    service: str | None = None
    timeout_sec: Seconds = 60.0
    user: User = None


class VerifierTable(NetworkTable):
    """`[verifier]`."""

    timeout_sec: Seconds = 600.0
    env: Mapping[str, str] = Field(default_factory=dict)
    user: User = None
    environment_mode: Literal["shared", "separate"] = "shared"
    environment: EnvironmentTable | None = None
    collect: tuple[Collect, ...] = ()


class SolutionTable(Table):
    """`[solution]`."""

    env: Mapping[str, str] = Field(default_factory=dict)


class Artifact(Table):
    """An entry of `artifacts`."""

    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None

    @field_validator("source", "destination")
    @classmethod
    def _inside(cls, path: str | None) -> str | None:
        if path is not None and ".." in path.split("/"):
            raise ValueError(f"{path!r} has '..'")
        return path


class StepTable(Table):
    """An entry of `[[steps]]`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    min_reward: float | Mapping[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()

    @field_validator("artifacts", mode="before")
    @classmethod
    def _tables(cls, value: object) -> object:
        return _as_tables(value)


class TaskConfig(Table):
    """The whole file."""

    schema_version: str = Field(
        default="1.0",
        validation_alias=AliasChoices("schema_version", "version"),
        pattern=r"^1\.[0-4]$",
    )
    task: About | None = None
    metadata: Mapping[str, Any] = Field(default_factory=dict)
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: EnvironmentTable = EnvironmentTable()
    solution: SolutionTable = SolutionTable()
    artifacts: tuple[Artifact, ...] = ()
    steps: tuple[StepTable, ...] = ()
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    source: str | None = None

    @field_validator("artifacts", mode="before")
    @classmethod
    def _tables(cls, value: object) -> object:
        return _as_tables(value)

    @field_validator("steps")
    @classmethod
    def _distinct(cls, steps: tuple[StepTable, ...]) -> tuple[StepTable, ...]:
        if len({step.name for step in steps}) < len(steps):
            raise ValueError("two steps have one name")
        return steps


def parse_config(text: str, where: str) -> TaskConfig:
    """Return the settings of a `task.toml`.

    Raises:
        SettingsError: it is no TOML, or a field is unknown or wrong; names the first one.
    """
    try:
        return TaskConfig.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{where}: no TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise SettingsError(f"{where}: {field}: {first['msg']}") from error


def _as_tables(value: object) -> object:
    """Read a text in place of a table as its source."""
    if not isinstance(value, list):
        return value
    return [{"source": entry} if isinstance(entry, str) else entry for entry in value]
