"""Conversations that are rendered again before each turn, at the cost of the turn."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.control.environment import Conversation
from rollart_flow.errors import TemplateRefusedError
from rollart_flow.models.chat.heads import HeadRule
from rollart_flow.models.chat.history import HistoryRenderer, Rendering
from rollart_flow.models.chat.template import ChatTemplate, Form
from rollart_flow.types import Message
from rollart_flow.types.messages import tool_result, user
from rollart_flow.types.token_ids import TokenBuffer, TokenIds, common_tokens
from tests.models.chat.families import (
    DEEPSEEK_TOOLS,
    FAMILIES,
    GEMMA,
    LLAMA,
    MISTRAL,
    QWEN3,
    TOOLS,
    Family,
)
from tests.models.chat.test_conversation import ADD, SAY, WITH_TOOLS, called, opening, said

TURNS = st.lists(
    st.tuples(
        st.sampled_from(["text", "thinking", "call", "two calls"]),
        st.sampled_from(["Go on.", " {1}\n\n", "<|im_end|> and <s>[INST]", "probe-of-an-action"]),
        st.booleans(),
    ),
    min_size=2,
    max_size=7,
)


def actions(family: Family) -> dict[str, tuple[int, ...]]:
    """The tokens of an action of each kind."""
    shown, tools = opening(family), TOOLS if family.tools else ()
    made = {
        "text": said("Sure and on"),
        "thinking": said("Sure", thinking="Hm and so on"),
        "call": called(ADD, thinking="Hm"),
        "two calls": called(ADD, SAY),
    }
    if not family.tools:
        made |= {"call": made["text"], "two calls": made["thinking"]}
    elif not family.parallel:
        made["two calls"] = made["call"]
    return {name: family.generated(shown, action, tools) for name, action in made.items()}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@given(turns=TURNS)
@settings(max_examples=10, deadline=None)
def test_the_tokens_are_those_of_the_whole_conversation(
    family: Family, turns: Sequence[tuple[str, str, bool]]
) -> None:
    written = actions(family)
    tools = TOOLS if family.tools else ()
    conversation: Conversation = family.codec.converse(tools)
    messages: list[Message] = opening(family)
    chain = conversation.observe(messages)
    for kind, text, branches in turns:
        action = conversation.act(written[kind])
        chain += written[kind]
        messages.append(action.as_message())
        assert conversation.rewritten_at(chain) == rewritten_at(family, messages, chain)
        shown = [tool_result(call, text) for call in action.tool_calls] or [user(text)]
        messages += shown
        try:
            whole = family.codec.converse(tools).observe(messages)
        except TemplateRefusedError:
            return
        again = conversation.retold(shown, TokenIds.of(chain))
        if again is None:
            assert whole[: len(chain)] == chain
        else:
            assert again.tokens.read() == whole
            assert again.shared == common_tokens(chain, whole) < len(chain)
        if again is not None and branches:
            conversation, chain = again.conversation, whole
        else:
            chain += conversation.observe(shown)
        assert conversation.rewritten_at(chain) == rewritten_at(family, messages, chain)


def rewritten_at(family: Family, messages: list[Message], chain: tuple[int, ...]) -> int | None:
    """As a conversation says that has only read the messages."""
    fresh = family.codec.converse(TOOLS if family.tools else ())
    fresh._messages = messages
    return fresh.rewritten_at(chain)


RULES = {"mistral v3": HeadRule.ONCE, "deepseek with tools": HeadRule.NEVER}
"""Mistral's template compares each message with the last one, DeepSeek's marks only the first
answers of tools."""
LOCAL = {
    name: family for name, family in WITH_TOOLS.items() if RULES.get(name) is not HeadRule.NEVER
}


@pytest.mark.parametrize("family", LOCAL.values(), ids=LOCAL)
@pytest.mark.parametrize("kind", ["thinking", "call"])
def test_a_turn_renders_no_earlier_turns(
    family: Family, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    render = ChatTemplate.render

    def counted(
        self: ChatTemplate, messages: Sequence[Form], tools: Sequence[Form] = (), *, prompt: bool
    ) -> str:
        sizes.append(len(messages))
        return render(self, messages, tools, prompt=prompt)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    written = actions(family)[kind]
    conversation: Conversation = family.codec.converse(TOOLS)
    tokens = TokenBuffer(TokenIds.of(conversation.observe(opening(family))))
    found = []
    for turn in range(20):
        sizes.clear()
        tokens.extend(written)
        action = conversation.act(written)
        shown = [tool_result(call, "3") for call in action.tool_calls] or [user(f"And {turn}?")]
        conversation, tokens = told_again(conversation, shown, tokens)
        found.append(max(sizes))
    assert max(found[3:]) <= 6, "the message of the system, a probe of a turn, and two turns"


@pytest.mark.parametrize("kind", ["thinking", "call"])
def test_a_turn_compares_no_earlier_tokens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    common = TokenIds.common

    def counted(self: TokenIds, other: TokenIds) -> int:
        shared = self._view.obj is other._view.obj
        compared.append(0 if shared else min(len(self), len(other)))
        return common(self, other)

    monkeypatch.setattr(TokenIds, "common", counted)
    written = actions(QWEN3)[kind]
    conversation: Conversation = QWEN3.codec.converse(TOOLS)
    tokens = TokenBuffer(TokenIds.of(conversation.observe(opening(QWEN3))))
    for turn in range(40):
        compared.clear()
        tokens.extend(written)
        action = conversation.act(written)
        shown = [tool_result(call, "3") for call in action.tool_calls] or [user("And?")]
        conversation, tokens = told_again(conversation, shown, tokens)
        assert not sum(compared) or turn < 3 or len(tokens) < 2 * compared[0]


def told_again(
    conversation: Conversation, shown: Sequence[Message], tokens: TokenBuffer
) -> tuple[Conversation, TokenBuffer]:
    """Go on with the messages as they are rendered now; the tokens grow."""
    again = conversation.retold(shown, tokens.read())
    if again is not None:
        return again.conversation, again.tokens
    tokens.extend(conversation.observe(shown))
    return conversation, tokens


def test_a_question_asked_again_does_not_cost_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[int] = []
    render = HistoryRenderer._whole

    def counted(self: HistoryRenderer, messages: Sequence[Message], *, prompt: bool) -> Rendering:
        whole.append(len(messages))
        return render(self, messages, prompt=prompt)

    monkeypatch.setattr(HistoryRenderer, "_whole", counted)
    say, call = (actions(MISTRAL)[kind] for kind in ("text", "call"))
    conversation: Conversation = MISTRAL.codec.converse(TOOLS)
    messages = [user("Go")]
    tokens = TokenBuffer(TokenIds.of(conversation.observe(messages)))
    found = []
    asked = ["one", "two", "one", "", "", "three", "", "four", "five"]
    for text in asked:
        whole.clear()
        written = say if text else call
        tokens.extend(written)
        action = conversation.act(written)
        shown = [user(text)] if text else [tool_result(each, "3") for each in action.tool_calls]
        messages += [action.as_message(), *shown]
        conversation, tokens = told_again(conversation, shown, tokens)
        assert MISTRAL.text(tokens.read()) == MISTRAL.rendered(messages, TOOLS)
        found.append(bool(whole))
    assert found[1:] == [False, True, *[False] * 6], "only the repeated question renders all"


@pytest.mark.parametrize("name", FAMILIES)
def test_most_real_templates_allow_it(name: str) -> None:
    family = FAMILIES[name]
    conversation = family.codec.converse(TOOLS if family.tools else ())
    chain = conversation.observe(opening(family))
    written = actions(family)["text"]
    conversation.act(written)
    conversation.retold("And?", TokenIds.of(chain + written))
    known = conversation._renderer.head_rules
    assert known[family.system, family.tools] is RULES.get(name, HeadRule.ALWAYS)


def test_a_template_that_counts_its_turns_is_rendered_whole() -> None:
    source = (
        "{% for message in messages %}{{ '<|im_start|>' + message.role + loop.index | string "
        "+ message.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
    )
    family = Family("counting", ("<|im_end|>", "<|im_start|>"), template=source, tools=False)
    conversation: Conversation = family.codec.converse()
    messages: list[Message] = [user("Go")]
    tokens = TokenBuffer(TokenIds.of(conversation.observe(messages)))
    for _ in range(5):
        tokens.extend(family.ids("on<|im_end|>"))
        messages += [conversation.act(family.ids("on<|im_end|>")).as_message(), user("And?")]
        conversation, tokens = told_again(conversation, [user("And?")], tokens)
        assert family.text(tokens.read()) == family.rendered(messages)


def test_messages_that_the_template_refuses_leave_the_conversation_as_it_was() -> None:
    for family in (GEMMA, LLAMA, QWEN3, DEEPSEEK_TOOLS):
        chains = []
        for asks in (False, True):
            conversation = family.codec.converse()
            written = family.ids("on" + family.text_end)
            chain = TokenIds.of(conversation.observe("one") + written)
            conversation.act(written)
            if asks and family is GEMMA:
                with pytest.raises(TemplateRefusedError):
                    conversation.retold([user("two"), user("three")], chain)
            elif asks:
                conversation.retold("two", chain)
            chains.append(conversation.observe("two"))
        assert chains[0] == chains[1]


def test_heads_have_the_text_that_a_template_writes_after_actions() -> None:
    source = (
        "{% for message in messages %}{{ '<|im_start|>' + message.role + message.content + '\n' "
        "+ '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
    )
    family = Family("spaced", ("<|im_end|>", "<|im_start|>"), template=source, tools=False)
    conversation: Conversation = family.codec.converse()
    messages: list[Message] = [user("Go")]
    tokens = TokenBuffer(TokenIds.of(conversation.observe(messages)))
    for written in ("on", "on", "on\n<|im_end|>", "on<|im_end|>", "on"):  # some reach their limit
        tokens.extend(family.ids(written))
        messages += [conversation.act(family.ids(written)).as_message(), user("And?")]
        again = conversation.retold("And?", tokens.read())
        if again is None:
            tokens.extend(conversation.observe("And?", ended=written.endswith(">")))
        else:
            conversation, tokens = again.conversation, again.tokens
            assert family.text(tokens.read()) == family.rendered(messages)
