"""Families of models: a real chat template each, and a small tokenizer with its special tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.chat.settings import ChatSettings
from rollart_flow.models.chat.template import EPOCH
from rollart_flow.types import Message, Tool

TEMPLATES = Path(__file__).parent / "templates"
MERGES = (("a", "n"), ("an", "d"), ("\u010a", "\u010a"), ("e", "r"), ("o", "n"))
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Words as the tokenizers of Qwen and Llama split them."""
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = (
    Tool(
        "add",
        "Add two numbers",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    ),
    Tool(
        "say",
        "Say a text",
        {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    ),
)


@dataclass(frozen=True)
class Family:
    """One family, as its models are published."""

    name: str
    special: tuple[str, ...]
    """Special tokens; the first is the eos token."""
    added: tuple[str, ...] = ()
    """Added tokens that are not special."""
    template: str = ""
    """Text of the template; without it the file of the family's name."""
    bos: str | None = None
    tools: bool = True
    system: bool = True
    parallel: bool = True
    as_text: bool = False
    """Whether the template wants the arguments of calls as JSON text, and no empty content."""
    thinking: str = "reasoning_content"
    options: Mapping[str, Any] = field(default_factory=dict)
    ends: tuple[str, ...] = ()
    """Markers after a text and after calls, if not the eos token."""

    @property
    def text_end(self) -> str:
        return (*self.ends, self.special[0])[0]

    @property
    def call_end(self) -> str:
        return (*self.ends, self.special[0])[1 if self.ends[1:] else 0]

    @cached_property
    def source(self) -> str:
        return self.template or (TEMPLATES / f"{self.name}.jinja").read_text()

    @cached_property
    def files(self) -> dict[str, str]:
        config = {"eos_token": self.special[0], "chat_template": self.source}
        if self.bos is not None:
            config["bos_token"] = self.bos
        return {
            "tokenizer.json": tokenizer(self.special, self.added).to_str(),
            "tokenizer_config.json": json.dumps(config),
            "chat.json": ChatSettings(options=self.options).as_text(),
        }

    @cached_property
    def codec(self) -> TextCodec:
        return TextCodec(self.files)

    @cached_property
    def reference(self) -> Any:
        """The tokenizer of transformers."""
        made: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=Tokenizer.from_str(self.files["tokenizer.json"]),
            eos_token=self.special[0],
            bos_token=self.bos,
        )
        made.chat_template = self.source
        return made

    def rendered(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, prompt: bool = True
    ) -> str:
        """The text of a conversation by transformers."""
        return str(
            self.reference.apply_chat_template(
                [self.form(message) for message in messages],
                tools=[tool.as_json() for tool in tools] or None,
                add_generation_prompt=prompt,
                tokenize=False,
                strftime_now=EPOCH.strftime,
                **self.options,
            )
        )

    def form(self, message: Message) -> dict[str, Any]:
        form = message.as_json()
        if self.thinking != "reasoning_content" and "reasoning_content" in form:
            form[self.thinking] = form.pop("reasoning_content")
        if self.as_text and message.tool_calls:
            form["content"] = form["content"] or None
            calls: Any = form["tool_calls"]
            for call in calls:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        return form

    def generated(
        self, before: Sequence[Message], action: Message, tools: Sequence[Tool] = ()
    ) -> tuple[int, ...]:
        """The tokens of an action, as a policy generates it after messages."""
        prompt = self.rendered(before, tools)
        whole = self.rendered([*before, action], tools, prompt=False)
        marker = self.call_end if action.tool_calls else self.text_end
        if whole.startswith(prompt):
            text, _, _ = whole[len(prompt) :].partition(marker)
        else:  # the template shows no thinking, which the prompt has opened
            opened = prompt.rstrip().removesuffix("</think>").rstrip().removesuffix("<think>")
            shown, _, _ = whole.removeprefix(opened).partition(marker)
            text = "\n</think>\n\n" + shown.rpartition("</think>\n\n")[2]
        return self.ids(text + marker)

    def ids(self, text: str) -> tuple[int, ...]:
        """The tokens of a text whose markers are markers, such as a policy generates."""
        return tuple(self.reference.encode(text, add_special_tokens=False))

    def text(self, token_ids: Sequence[int]) -> str:
        return str(self.reference.decode(list(token_ids), skip_special_tokens=False))


def tokenizer(special: Sequence[str], added: Sequence[str]) -> Tokenizer:
    """A byte-level tokenizer with a few merges."""
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    vocabulary = {token: index for index, token in enumerate(alphabet)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=list(MERGES)))
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([words, spelled])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in special])
    made.add_tokens([AddedToken(each, normalized=False) for each in added])
    return made


_IM = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
_QWEN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_THINK = ("<think>", "</think>")
_HEADERS = ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>")
_ROLES = ("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>", "[gMASK]", "<sop>")
_GLM = (*_QWEN, *_THINK, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>")
_DEEPSEEK = (
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
)
_DEEPSEEK_TOOLS = (
    "{{ bos_token }}{{ ns.system_prompt }}",
    "{{ bos_token }}{{ ns.system_prompt }}{% for tool in tools or [] %}"
    "{{ '\n\n' + tool['function'] | tojson }}{% endfor %}",
)
"""Text of the published template, which has no place for tools, and that with one."""
_MISTRAL = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
_MISTRAL_TOOLS = ("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
_MISTRAL_NEW = ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")

CHATML_FAMILY = Family("chatml", _IM, template=CHATML, tools=False)
QWEN25 = Family("qwen2_5", _IM, _QWEN)
QWEN3 = Family("qwen3", _IM, (*_QWEN, *_THINK))
QWEN3_OFF = Family("qwen3", _IM, (*_QWEN, *_THINK), options={"enable_thinking": False})
QWEN35 = Family("qwen3_5_think", _IM, (*_QWEN, *_THINK))
LLAMA = Family("llama3_1", (*_HEADERS, "<|python_tag|>"), bos=_HEADERS[1], parallel=False)
GEMMA = Family(
    "gemma3",
    ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
    bos="<bos>",
    tools=False,
    ends=("<end_of_turn>",),
)
GLM = Family("glm4moe", ("<|endoftext|>", *_ROLES), _GLM, ends=("<|user|>", "<|observation|>"))
GPT_OSS = Family(
    "gptoss",
    ("<|return|>", *_HARMONY),
    parallel=False,
    thinking="thinking",
    ends=("<|return|>", "<|call|>"),
)
MISTRAL = Family("mistral", ("</s>", "<s>", *_MISTRAL, *_MISTRAL_TOOLS), bos="<s>", system=False)
MISTRAL_7 = replace(
    MISTRAL, name="mistral_v7", special=(*MISTRAL.special, *_MISTRAL_NEW), system=True
)
MISTRAL_13 = replace(MISTRAL_7, name="mistral_v13")
DEEPSEEK = Family(
    "deepseekv3",
    ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
    (*_DEEPSEEK, *_THINK),
    bos="<｜begin▁of▁sentence｜>",
    tools=False,
)
DEEPSEEK_TOOLS = replace(
    DEEPSEEK, template=DEEPSEEK.source.replace(*_DEEPSEEK_TOOLS), tools=True, as_text=True
)
FAMILIES = {
    "chatml": CHATML_FAMILY,
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "qwen3 without thinking": QWEN3_OFF,
    "qwen3.5": QWEN35,
    "llama3": LLAMA,
    "gemma3": GEMMA,
    "glm4.5": GLM,
    "gpt-oss": GPT_OSS,
    "mistral v3": MISTRAL,
    "mistral v7": MISTRAL_7,
    "mistral v13": MISTRAL_13,
    "deepseek": DEEPSEEK,
    "deepseek with tools": DEEPSEEK_TOOLS,
}
