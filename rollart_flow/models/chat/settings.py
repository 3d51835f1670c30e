"""Settings of a policy's conversations, which its folder keeps in chat.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from rollart_flow.errors import SettingsError
from rollart_flow.models.chat.template import EPOCH
from rollart_flow.models.tokenizer import CHAT_FILE

AUTO_FORMAT = "auto"
KEEP, BRANCH = "keep", "branch"


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Settings for rendering the chat template and parsing generated tokens."""

    format: str = AUTO_FORMAT
    """Name of a format of `formats`; "auto" finds it from the chat template."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Variables of the chat template, such as enable_thinking."""
    history: str = KEEP
    """"keep": the chain keeps earlier turns as they are; "branch": where the template changes
    them, a branch begins with what it renders."""
    now: datetime = EPOCH
    """Time that the chat template sees; it stays that of the run's start, so that replays agree."""

    @classmethod
    def parse(cls, text: str | None) -> "ChatSettings":
        """Return the settings in a chat.json, or the defaults without one.

        Raises:
            SettingsError: the text is damaged.
        """
        if text is None:
            return cls()
        try:
            found = json.loads(text)
            now = datetime.fromisoformat(found["now"])
            history = str(found.get("history", KEEP))
            return cls(str(found["format"]), dict(found["options"]), history, now)
        except (ValueError, KeyError, TypeError) as error:
            raise SettingsError(f"{CHAT_FILE} is damaged: {error}") from error

    def as_text(self) -> str:
        """Return the text of a chat.json."""
        form = {
            "format": self.format,
            "options": self.options,
            "history": self.history,
            "now": self.now.isoformat(),
        }
        return json.dumps(form, indent=2, sort_keys=True)
