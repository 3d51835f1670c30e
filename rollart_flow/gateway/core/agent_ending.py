"""The ending of an attempt whose agent is a program: how it ended, and how its calls did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.gateway.core.calls import Refusal, answer_from_json
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.types import Outcome, Reason

_MOST_SAID = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """The end of a program, as its environment reports it."""

    exit_code: int
    killed: str = ""
    """Limit that ended the program; empty if none did."""
    said: str = ""
    """The last part of what it printed, in one line."""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> "ProgramEnd":
        """Return the end that the `info` of a step describes."""
        return cls(
            exit_code=int(info["exit_code"]), killed=str(info["killed"]), said=str(info["said"])
        )


def ending_of(
    program: ProgramEnd,
    exchanges: Sequence[Exchange],
    *,
    late: bool,
) -> tuple[AttemptResult, bool]:
    """Return the ending of an attempt, and whether what the program left is judged.

    A program that reached a limit and then ended is truncated and judged; one that had to be
    killed, failed by itself or never asked the policy is not judged.

    Args:
        program: end of the program.
        exchanges: its calls.
        late: whether the gateway ended its last turn because its time was over.
    """
    last = exchanges[-1] if exchanges else None
    refusal = None if last is None else last.refusal
    if program.killed == "time":
        error = "the agent went on after its time was over, and was killed"
        return AttemptResult(Outcome.TIMED_OUT, Reason.AGENT_TIMEOUT, error), False
    if program.killed:
        error = f"the agent reached the limit of {program.killed} of its box"
        return AttemptResult(Outcome.FAILED, Reason.AGENT_FAILED, error), False
    if last is not None and refusal == Refusal.ENGINE:
        return AttemptResult(Outcome.FAILED, Reason.ENGINE_ERROR, last.error), False
    if not any(each.answer_start < each.end for each in exchanges):
        return AttemptResult(Outcome.FAILED, Reason.AGENT_SILENT, _silence(program, last)), False
    if refusal == Refusal.OVERFLOW:
        return AttemptResult(Outcome.TRUNCATED, Reason.CONTEXT_OVERFLOW), True
    if late:
        return AttemptResult(Outcome.TRUNCATED, Reason.AGENT_TIMEOUT), True
    if any(each.control for each in exchanges):
        return AttemptResult(Outcome.TRUNCATED, Reason.TURN_LIMIT), True
    if program.exit_code:
        error = _with_output(f"the agent ended with exit code {program.exit_code}", program)
        return AttemptResult(Outcome.FAILED, Reason.AGENT_FAILED, error), False
    return AttemptResult(Outcome.COMPLETED), True


def said_by(exchanges: Sequence[Exchange]) -> list[str]:
    """Return the texts that the policy gave the program: of answers, and of calls' arguments.

    The first million characters are enough to find what a judge suspects.
    """
    said: list[str] = []
    room = _MOST_SAID
    for each in exchanges:
        if each.answer is None or each.control:
            continue
        action = answer_from_json(each.answer).action
        arguments = (value for call in action.tool_calls for value in call.arguments.values())
        for text in (action.text, *filter(_is_text, arguments)):
            if text and room > 0:
                said.append(str(text)[:room])
                room -= len(said[-1])
    return said


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _silence(program: ProgramEnd, last: Exchange | None) -> str:
    if last is not None:
        return f"no call of the agent was answered; the last one: {last.error}"
    said = f"the agent made no call and ended with exit code {program.exit_code}"
    return _with_output(said, program)


def _with_output(said: str, program: ProgramEnd) -> str:
    return f"{said}: {program.said}" if program.said else said
