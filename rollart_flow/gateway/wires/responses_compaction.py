"""Compaction of OpenAI's responses: `POST /v1/responses/compact`, and the items that it returns.

The policy itself writes the summary, as the answer to one more message of the user. The compacted
conversation has the user's messages and one item of type `compaction`, whose content clients send
back as it is; it holds the summary, so that the gateway has nothing to remember.
"""

import base64
import binascii
from typing import Any

from rollart_flow.gateway.core.calls import ModelAnswer, ModelCall
from rollart_flow.gateway.wires.base import JsonObject
from rollart_flow.gateway.wires.reading import Fields
from rollart_flow.types import Message, Role

ASKS = (
    "Summarize this conversation so that the work can go on from the summary alone: the task, what "
    "was done, what was found, and what is still to do. Answer with the summary as text, and call "
    "no tool."
)
"""Message of the user to which the policy answers with a summary."""
SHOWN = "Summary of the conversation up to here:\n\n"
"""Begin of the message that shows a summary to the policy."""
_MARK = "rollart1."


def is_compaction(target: str) -> bool:
    """Return whether the path of a request asks for a compaction."""
    return target.partition("?")[0].rstrip("/").endswith("/compact")


def summary_in(item: Fields) -> str:
    """Return the message that shows the summary of an item of type `compaction`."""
    item.text("id")
    content = item.need("encrypted_content")
    mark, found, data = content.partition(_MARK)
    try:
        if not mark and found:
            return SHOWN + base64.b64decode(data, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        pass
    return item.unsupported(
        "encrypted_content", "is of another provider; send its conversation instead"
    )


def compacted(answer: ModelAnswer, call: ModelCall, usage: JsonObject) -> JsonObject:
    """Return the compacted conversation: the messages of the user, then the summary."""
    users = [each for each in call.messages[:-1] if each.role is Role.USER]
    kept = [_user_item(each) for each in users if not each.text.startswith(SHOWN)]
    content = base64.urlsafe_b64encode(answer.action.text.encode()).decode()
    item = {
        "type": "compaction",
        "id": f"cmp_{answer.answer_id}",
        "encrypted_content": _MARK + content,
    }
    return {
        "id": f"resp_{call.digest[:32]}",
        "object": "response.compaction",
        "created_at": call.created,
        "output": [*kept, item],
        "usage": usage,
    }


def _user_item(message: Message) -> JsonObject:
    parts: list[Any] = []
    for part in message.parts or (message.text,):
        if isinstance(part, str):
            parts.append({"type": "input_text", "text": part})
        else:
            url = f"data:image/png;base64,{base64.b64encode(part.png or b'').decode()}"
            parts.append({"type": "input_image", "image_url": url, "detail": "auto"})
    return {"type": "message", "role": "user", "status": "completed", "content": parts}
