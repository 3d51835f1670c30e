"""Replay of all calls of a run's captured agents, and trial of another parser on them."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rollart_flow.errors import SettingsError
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.chat.formats import FORMAT_NAMES, ChatFormat, ParsedText, format_of
from rollart_flow.models.chat.settings import AUTO_FORMAT
from rollart_flow.models.version_zero import load_codec
from rollart_flow.replay.exchanges import CallDifference, SessionAgain, SessionReplay, shortened
from rollart_flow.replay.stored_attempts import captured_attempts, read_attempt
from rollart_flow.store import Run
from rollart_flow.store.layout import policy_uri
from rollart_flow.types import Trajectory
from rollart_flow.weights.folder_store import local_path

_FIRST = 10
"""Differences that a report has."""


@dataclass(slots=True)
class ExchangesReplay:
    """Result of replaying all calls of a run."""

    parser: str
    """Name and version of the parser, or name of the format that was tried."""
    attempts: int = 0
    calls: int = 0
    """Calls that were compared."""
    differing: int = 0
    """Calls that differ; with the run's own parser, at most one for each attempt."""
    first: list[dict[str, Any]] = field(default_factory=list)
    """The first differences: trajectory_id, call, what and said."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differing

    def add(self, replayed: SessionReplay, differences: Sequence[CallDifference]) -> None:
        """Add an attempt."""
        self.attempts += 1
        self.calls += replayed.replayed
        self.differing += len(differences)
        for each in differences[: _FIRST - len(self.first)]:
            found = {"call": each.call, "what": each.what, "said": each.said}
            self.first.append({"trajectory_id": replayed.trajectory_id, **found})


def replay_calls(run_uri: str, trajectory_id: str) -> SessionReplay:
    """Render and parse the calls of a captured attempt again, up to the first difference.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: there is no such trajectory, or it is none of a captured agent.
    """
    run = Run(run_uri)
    attempt, _ = read_attempt(run, trajectory_id)
    if attempt[0].exchanges is None:
        raise SettingsError(f"trajectory {trajectory_id!r} is not of a captured agent")
    return _in_a_loop(SessionAgain(attempt, _codec(run)))


def replay_exchanges(run_uri: str, parser: str | None = None) -> ExchangesReplay:
    """Render and parse all calls of a run's captured agents again.

    Args:
        run_uri: address of the run.
        parser: format of `models.chat.formats` that each answer is parsed in too, and compared with
            the run's own; None compares what is parsed now with what was stored.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: there is no such format.
    """
    run = Run(run_uri)
    codec = _codec(run)
    if parser is not None and parser not in set(FORMAT_NAMES) - {AUTO_FORMAT}:
        names = ", ".join(name for name in FORMAT_NAMES if name != AUTO_FORMAT)
        raise SettingsError(f"no format {parser!r} of answers; there are {names}")
    found = ExchangesReplay(parser or codec.parser_version)
    for branches in captured_attempts(run):
        if parser is None:
            replayed = _in_a_loop(SessionAgain(branches, codec))
            differences = [replayed.difference] if replayed.difference else []
        else:
            replayed, differences = try_parser(branches, codec, format_of("", parser))
        found.add(replayed, differences)
    return found


def try_parser(
    branches: Sequence[Trajectory], codec: TextCodec, chat_format: ChatFormat
) -> tuple[SessionReplay, list[CallDifference]]:
    """Return the replay of an attempt, and the answers that a format parses otherwise."""
    from rollart_flow.replay.tried_parser import TriedCodec

    found: list[CallDifference] = []
    current: list[int] = []

    def parsed(token_ids: tuple[int, ...], ours: ParsedText, other: ParsedText) -> None:
        if current and ours != other:
            said = f"{shortened(_said(ours))} is {shortened(_said(other))} in {chat_format.name}"
            found.append(CallDifference(current[-1], "parser", said))
        current.clear()  # what is parsed until the next call are earlier answers

    again = SessionAgain(branches, TriedCodec(codec, chat_format, parsed), current.append)
    return _in_a_loop(again), found


def _said(parsed: ParsedText) -> str:
    calls = ", ".join(f"{call.name}({call.arguments})" for call in parsed.calls)
    thinking = "" if parsed.thinking is None else f"thinking {parsed.thinking!r}, "
    return f"{thinking}text {parsed.text!r}, calls [{calls}]"


def _codec(run: Run) -> TextCodec:
    return load_codec(local_path(policy_uri(run.uri)))


def _in_a_loop(again: SessionAgain) -> SessionReplay:
    """Run a session in a loop of its own: the caller may have a running one (a notebook)."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, again.run()).result()
