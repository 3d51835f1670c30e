"""Registry of the context policies, by the name in `rollout(context=...)`.

    rollout(prompts, policy, context="cut(at=0.8, keep=0.5)")

A context policy is a frozen dataclass derived from `ContextPolicy`; its fields are its settings. To
add one inside the library: its file, and its name below. A package adds one through an entry point
of the group `rollart_flow.contexts`.
"""

from rollart_flow.calls import parse_call
from rollart_flow.control.context.base import ContextPolicy
from rollart_flow.errors import SettingsError
from rollart_flow.registry import Registry

END = "end"
"""Name for no context policy: an attempt whose chain gets too long ends."""

CONTEXTS: Registry[type[ContextPolicy]] = Registry(
    "contexts",
    {
        "cut": "rollart_flow.control.context.cut:CutContext",
        "summarize": "rollart_flow.control.context.summarize:SummarizedContext",
        "notes": "rollart_flow.control.context.notes:NotedContext",
    },
    setting="context",
    kind=type,
    also=(END,),
)


def named_context(text: str | None) -> ContextPolicy | None:
    """Return the context policy of a text such as "cut(keep=0.25)"; None for "end" and for None.

    Raises:
        SettingsError: no context policy has the name, or the arguments are wrong.
    """
    if text is None or text == END:
        return None
    call = parse_call("context", text, f'"cut", "cut(keep=0.25)" or "{END}"')
    kind = CONTEXTS.load(call.name)
    try:
        policy = kind(*call.arguments, **call.keywords)  # type: ignore[arg-type]  # checked there
    except (TypeError, SettingsError) as error:
        raise SettingsError(f"context {text!r}: {error}") from None
    if not isinstance(policy, ContextPolicy):
        raise SettingsError(f"context {text!r}: {kind.__name__} is no ContextPolicy")
    return policy
