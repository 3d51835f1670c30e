"""The chat template of a model, rendered exactly as transformers renders it, without transformers.

`ChatTemplate.render` is a function of its arguments alone: the time that a template may ask for is
fixed when the template is made, so that a replay renders the same text.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rollart_flow.errors import SettingsError, TemplateRefusedError

Form = Mapping[str, Any]
"""A message in the JSON form that templates read."""
CLOCK = "strftime_now"
"""Function by which a template asks for the time."""
EPOCH = datetime(2025, 1, 1)
"""Time of templates that were given none."""


_PROBE = "probe-of-a-text"


def _in_parts(message: Form) -> Form:
    """Return a message whose text is a part."""
    text = message.get("content")
    return (
        {**message, "content": [{"type": "text", "text": text}]}
        if isinstance(text, str)
        else message
    )


class _Generation(Extension):
    """The block `generation`, which marks tokens of the assistant for trainers, renders its body.

    Its body has a scope of its own, as in transformers.
    """

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as a variable of instances

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        text: str = caller()
        return text


class ChatTemplate:
    """A compiled chat template and the variables that all of its renderings have."""

    def __init__(self, source: str, variables: Mapping[str, Any], now: datetime = EPOCH) -> None:
        """Compile the template.

        Args:
            source: text of the template.
            variables: variables such as bos_token or enable_thinking, by name.
            now: time that the template sees.

        Raises:
            SettingsError: the template cannot be compiled.
        """
        self.source = source
        self._variables = dict(variables)
        seen = json.dumps([source, self._variables, now.isoformat()], sort_keys=True, default=str)
        self.digest = hashlib.sha256(seen.encode()).hexdigest()[:16]
        """First digits of the SHA-256 of what renderings depend on beside the messages."""
        self._now = now
        try:
            self._compiled = _compile(source)
        except TemplateError as error:
            raise SettingsError(f"the chat template cannot be rendered: {error}") from error
        self._parts = self._reads_only_parts()

    def render(self, messages: Sequence[Form], tools: Sequence[Form] = (), *, prompt: bool) -> str:
        """Return the text of a conversation.

        Args:
            messages: the messages.
            tools: functions that the assistant may call.
            prompt: whether the text ends with the prompt for a message of the assistant.

        Raises:
            TemplateRefusedError: the template raised an exception.
        """
        try:
            return self._compiled.render(
                messages=[*map(_in_parts, messages)] if self._parts else messages,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=prompt,
                strftime_now=self._now.strftime,
                **self._variables,
            )
        except Exception as error:  # an expression of a template may raise any
            reason = " ".join(str(error).split()) or type(error).__name__
            raise TemplateRefusedError(
                f"the chat template refuses the messages: {reason}"
            ) from error

    def _reads_only_parts(self) -> bool:
        """Return whether the template takes text only as a part, as some for images do."""
        if "'text'" not in self.source and '"text"' not in self.source:
            return False
        message, self._parts = {"role": "user", "content": _PROBE}, False
        for parted in (False, True):
            with suppress(TemplateRefusedError):
                form = _in_parts(message) if parted else message
                if _PROBE in self.render([form], prompt=True):
                    return parted
        return False

    def __reduce__(self) -> tuple[type["ChatTemplate"], tuple[object, ...]]:
        return ChatTemplate, (self.source, self._variables, self._now)


@lru_cache(maxsize=32)
def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment.from_string(source)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without jinja2's escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> str:
    raise TemplateError(message)
