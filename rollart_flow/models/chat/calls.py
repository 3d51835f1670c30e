"""Calls of tools, as families of models write them, become values.

Each parser takes the text of an action, without stop tokens and thinking, and returns the text
outside calls and the calls in order. A parser never raises: what is no well-formed call has an
error.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollart_flow.models.chat.template import Form


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """One call as a policy wrote it."""

    text: str
    name: str = ""
    arguments: Mapping[str, object] | None = None
    call_id: str | None = None
    error: str | None = None


WrittenCalls = tuple[str, list[WrittenCall]]
"""Text outside calls, and the calls."""
CallParser = Callable[[str, Sequence[Form]], WrittenCalls]
"""Parser of a text, given the tools that may be called."""

_ID_IN_CALL = re.compile(r"\s*\[CALL_ID\]\s*(\w+)")
_DEEPSEEK_CALL = re.compile(
    r"\s*(?:function<｜tool▁sep｜>)?(?P<name>[^\s<{]+?)\s*(?:<｜tool▁sep｜>)?\s*"
    r"(?:```json)?\s*(?P<arguments>\{.*\})\s*(?:```)?\s*",
    re.DOTALL,
)
_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def no_calls(text: str, tools: Sequence[Form]) -> WrittenCalls:
    """Return the whole text, for models that call no tools."""
    return text, []


def json_in_tags(text: str, tools: Sequence[Form]) -> WrittenCalls:
    """Parse calls of Hermes and Qwen: JSON between `<tool_call>` and `</tool_call>`."""
    return _in_tags(text, "<tool_call>", "</tool_call>", call_in_json)


def functions_in_tags(text: str, tools: Sequence[Form]) -> WrittenCalls:
    """Parse calls of Qwen3-Coder and Qwen3.5: `<function=NAME>` with `<parameter=KEY>` values."""

    def one(inner: str) -> WrittenCall:
        found = _FUNCTION.fullmatch(inner)
        if found is None:
            return WrittenCall(inner, error="the call is not <function=NAME>...</function>")
        name, body = found[1].strip(), found[2]
        if _PARAMETER.sub("", body).strip():
            return WrittenCall(inner, name, error="the call has text outside its parameters")
        return _of_texts(inner, name, _PARAMETER.findall(body), tools)

    return _in_tags(text, "<tool_call>", "</tool_call>", one)


def pairs_in_tags(text: str, tools: Sequence[Form]) -> WrittenCalls:
    """Parse calls of GLM: a name, then `<arg_key>` and `<arg_value>` by turns."""

    def one(inner: str) -> WrittenCall:
        name, _, _ = inner.partition("<arg_key>")
        if _GLM_ARGUMENT.sub("", inner).strip() != name.strip():
            return WrittenCall(inner, error="the call is not a name with <arg_key>, <arg_value>")
        return _of_texts(inner, name.strip(), _GLM_ARGUMENT.findall(inner), tools)

    return _in_tags(text, "<tool_call>", "</tool_call>", one)


def deepseek_calls(text: str, tools: Sequence[Form]) -> WrittenCalls:
    """Parse calls of DeepSeek-V3 and R1."""

    def one(inner: str) -> WrittenCall:
        found = _DEEPSEEK_CALL.fullmatch(inner)
        if found is None:
            return WrittenCall(inner, error="the call is not a name with a JSON object")
        return call_of(inner, found["name"], read_json(found["arguments"]))

    outside, calls = _in_tags(text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", one)
    return re.sub("<｜tool▁calls▁(?:begin|end)｜>", "", outside).strip(), calls


def bare_json(text: str, tools: Sequence[Form]) -> WrittenCalls:
    """Parse the one call of Llama 3: the whole text is a JSON object with a name."""
    whole = text.replace("<|python_tag|>", "").strip()
    marked = "<|python_tag|>" in text
    if not marked and not whole.startswith("{"):
        return text, []
    found = read_json(whole)
    if marked or (isinstance(found, dict) and "name" in found) or whole.startswith('{"name"'):
        return "", [call_in_json(whole)]
    return text, []


def mistral_calls(text: str, tools: Sequence[Form]) -> WrittenCalls:
    """Parse calls of Mistral: a JSON list after `[TOOL_CALLS]`, or each name and its JSON."""
    outside, *parts = text.split("[TOOL_CALLS]")
    calls: list[WrittenCall] = []
    for part in parts:
        found = read_json(part)
        if isinstance(found, list):
            calls += [_of_object(json.dumps(each), each) for each in found]
            continue
        named, marker, arguments = part.partition("[ARGS]")
        if not marker:
            named, brace, rest = part.partition("{")
            arguments = brace + rest
        written = _ID_IN_CALL.search(named)
        name = _ID_IN_CALL.sub("", named).strip()
        call = call_of(part, name, read_json(arguments))
        calls.append(_with_id(call, written[1] if written else None))
    return (outside.strip() if parts else outside), calls


def call_in_json(text: str) -> WrittenCall:
    """Return the call that a JSON object with name and arguments (or parameters) is."""
    return _of_object(text, read_json(text))


def call_of(text: str, name: object, arguments: object) -> WrittenCall:
    """Return a call with an error if its name or its arguments are none."""
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    if not isinstance(name, str) or not name:
        return WrittenCall(text, error="the call has no name")
    if isinstance(arguments, ValueError):
        return WrittenCall(text, name, error=f"the arguments are no JSON: {arguments}")
    if not isinstance(arguments, dict):
        return WrittenCall(text, name, error="the arguments are no JSON object")
    return WrittenCall(text, name, arguments)


def read_json(text: str) -> Any:
    """Return the value of a JSON text; a ValueError (not raised) if it cannot be stored as JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # refuses half a surrogate pair
        return value
    except RecursionError:
        return ValueError("it is nested too deeply")
    except ValueError as error:
        return ValueError(" ".join(str(error).split()))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _of_object(text: str, found: Any) -> WrittenCall:
    if isinstance(found, ValueError):
        return WrittenCall(text, error=f"the call is no JSON: {found}")
    if not isinstance(found, dict):
        return WrittenCall(text, error="the call is no JSON object")
    call = call_of(text, found.get("name"), found.get("arguments", found.get("parameters", {})))
    call_id = found.get("id")
    return _with_id(call, call_id if isinstance(call_id, str) else None)


def _with_id(call: WrittenCall, call_id: str | None) -> WrittenCall:
    return WrittenCall(call.text, call.name, call.arguments, call_id, call.error)


def _in_tags(text: str, start: str, end: str, one: Callable[[str], WrittenCall]) -> WrittenCalls:
    outside, *parts = text.split(start)
    calls, kept = [], [outside]
    for part in parts:
        inner, closed, rest = part.partition(end)
        kept.append(rest)
        calls.append(one(inner) if closed else WrittenCall(part, error=f"the call lacks {end}"))
    return ("".join(kept).strip() if parts else outside), calls


def _of_texts(
    text: str, name: str, pairs: Sequence[tuple[str, str]], tools: Sequence[Form]
) -> WrittenCall:
    """Return a call whose arguments are texts: JSON, unless the tool declares a string."""
    types = _declared(name, tools)
    arguments: dict[str, object] = {}
    for key, value in pairs:
        read = value if types.get(key.strip()) == "string" else read_json(value)
        arguments[key.strip()] = value if isinstance(read, ValueError) else read
    return call_of(text, name, arguments)


def _declared(name: str, tools: Sequence[Form]) -> dict[str, object]:
    """Return the type of each argument of a tool, where its schema declares one."""
    for tool in tools:
        if tool["function"]["name"] == name:
            properties = tool["function"]["parameters"].get("properties", {})
            return {key: schema.get("type") for key, schema in properties.items()}
    return {}
