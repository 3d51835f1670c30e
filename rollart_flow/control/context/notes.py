"""Notes outside the context: the oldest turns are cut, and what the policy has noted stays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rollart_flow.control.context.base import ContextPolicy, with_text
from rollart_flow.types import Observation, Tool, ToolCall

WRITE = Tool(
    "write_note",
    "Write a note. Notes stay when earlier turns are removed from a long conversation.",
    {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What to remember."}},
        "required": ["text"],
    },
)
READ = Tool("read_notes", "Read all notes.", {"type": "object", "properties": {}})


@dataclass(frozen=True)
class NotedContext(ContextPolicy):
    """Cut the oldest turns, and offer the policy tools for notes; for environments with tools."""

    tools: ClassVar[tuple[Tool, ...]] = (WRITE, READ)

    def opening(self, first: Observation, said: str | None, notes: Sequence[str]) -> Observation:
        """Return the first messages, which say that turns were removed."""
        count = f"{len(notes)} note{'' if len(notes) == 1 else 's'}"
        told = f"Earlier turns were removed. You have written {count}; {READ.name} shows them."
        return with_text(first, told)

    def called(self, call: ToolCall, notes: list[str]) -> str:
        """Write a note, or return all of them."""
        if call.name == WRITE.name:
            notes.append(str(call.arguments["text"]))
            return f"written as note {len(notes)}"
        return "\n".join(f"{n}. {text}" for n, text in enumerate(notes, 1)) or "no notes"
