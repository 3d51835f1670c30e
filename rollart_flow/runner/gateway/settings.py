"""Settings of a gateway by hand, and the policy that it serves."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

from rollart_flow.errors import RunNotFoundError, SettingsError
from rollart_flow.exporting import export
from rollart_flow.gateway.core.volatile import compiled
from rollart_flow.models.policy import Policy
from rollart_flow.store import open_run, store_uri

TINY = "tiny"
"""Word for a small policy made from scratch."""
TINY_CONTEXT = 16_384
"""Context of that policy [tokens], of which one is about a character."""
LARGEST_CONTEXT = 32_768
"""Context of other policies unless one is given [tokens], if the model has as many positions."""
_MAX_BATCH = 8
"""Calls that the engine decodes together; each reserves the memory of a whole context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Settings of one gateway by hand."""

    policy: str
    """A folder of Hugging Face, a repository, the name of a run, or "tiny"."""
    engine: str | None = None
    """Name of the engine; None for the embedded one, or for a run that of its policy."""
    context: int | None = None
    """Most tokens of a prompt with its answer; None for what the model has, up to
    `LARGEST_CONTEXT`."""
    max_tokens: int = 1024
    """Most tokens of one answer, however many a client asks for."""
    temperature: float = 1.0
    """Temperature of sampling, whatever a client asks for."""
    tools: bool = True
    """Whether clients may send tools, which the chat template needs a place for."""
    volatile: tuple[str, ...] = ()
    """Regular expressions of what a client changes with every call before the first answer, which
    is left out of prompts."""
    idle_s: float = 30.0
    """Time without a call after which a conversation has ended and is committed [s]."""
    port: int = 0
    """Port on loopback; 0 for a free one."""
    metrics: int | None = None
    """Port on loopback at which Prometheus finds the figures; 0 for a free one, None for none."""
    name: str | None = None
    """Name of the run; None for the next free one."""
    store: str | None = None
    """Store of the run, and of the run whose policy is served."""

    def __post_init__(self) -> None:
        for pattern in self.volatile:
            compiled(pattern)


@contextmanager
def found_policy(settings: GatewaySettings) -> Iterator[Policy]:
    """Provide the policy that settings name; its folder may be temporary.

    Raises:
        SettingsError: there is no such policy, or it cannot be served as the settings say.
        StoreError: the run cannot be read.
    """
    word = settings.policy
    if word == TINY:
        yield _fitting(Policy.tiny(), settings, TINY_CONTEXT)
    elif (Path(word).expanduser() / "config.json").is_file():
        yield _pretrained(settings)
    else:
        with tempfile.TemporaryDirectory(prefix="rollart-") as folder:
            yield _of_run(settings, Path(folder) / "policy") or _pretrained(settings)


def _of_run(settings: GatewaySettings, folder: Path) -> Policy | None:
    """Return the newest policy of the run that the settings name, in a folder; None without one."""
    try:
        run = open_run(settings.policy, store=settings.store)
    except RunNotFoundError:
        return None
    export(run, folder)
    described = run.info.settings["policy"]
    names = {each.name for each in fields(Policy)} & described.keys()
    recorded = Policy(**{name: described[name] for name in names})
    policy = replace(recorded, path=str(folder), images=False, warm_start=0)
    return _fitting(policy, settings, _positions(policy))


def _pretrained(settings: GatewaySettings) -> Policy:
    word = settings.policy
    try:
        policy = Policy.from_pretrained(word).located()
    except SettingsError as error:
        place = store_uri(settings.store)
        said = f"{error}; {word!r} is no run in {place} either, and not {TINY!r}"
        raise SettingsError(said) from error
    return _fitting(policy, settings, _positions(policy))


def _positions(policy: Policy) -> int:
    """Return the number of positions of a model, or `LARGEST_CONTEXT` if it has more."""
    config = json.loads((Path(policy.path or "") / "config.json").read_text())
    config |= config.get("text_config") or {}
    positions: int = config.get("max_position_embeddings", LARGEST_CONTEXT)
    return min(positions, LARGEST_CONTEXT)


def _fitting(policy: Policy, settings: GatewaySettings, context: int) -> Policy:
    return replace(
        policy,
        max_context=settings.context or context,
        max_batch=_MAX_BATCH,
        engine=settings.engine or policy.engine,
    )
