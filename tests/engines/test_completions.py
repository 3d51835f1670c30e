"""Completions on an engine: a judge is prompted and read by the chat settings of its policy."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from rollart_flow.control.environment import Codec
from rollart_flow.engines.completions import EngineCompletions, PolicyCompletions
from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.types import Chunk, FinishReason, GenerationRequest, Sampling
from tests.dst.environments import LetterCodec
from tests.models.chat.families import GPT_OSS, QWEN3, QWEN3_OFF, Family


class Repeating:
    """An engine that says the same tokens to each prompt."""

    def __init__(self, token_ids: tuple[int, ...]) -> None:
        self._token_ids = token_ids
        self.asked: list[Sequence[int]] = []

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.asked.append(request.prompt_ids)
        count = len(self._token_ids)
        some = (-1.0,) * count, (0,) * count
        yield Chunk(request.request_id, 0, self._token_ids, *some, FinishReason.STOP)


def answered(codec: Codec, token_ids: tuple[int, ...], prompt: str) -> tuple[str, Repeating]:
    engine = Repeating(token_ids)
    return asyncio.run(EngineCompletions(engine, codec, "m").complete(prompt)), engine


@pytest.mark.parametrize(
    ("family", "written"),
    [
        (QWEN3, "<think>\nScore: 1\n</think>\n\nScore: 2"),
        (QWEN3_OFF, "Score: 2"),
        (
            GPT_OSS,
            "<|channel|>analysis<|message|>Score: 1<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Score: 2",
        ),
    ],
    ids=["qwen3", "qwen3 without thinking", "gpt-oss"],
)
def test_the_answer_is_what_follows_the_thinking(family: Family, written: str) -> None:
    token_ids = family.ids(written + family.text_end)
    answer, engine = answered(family.codec, token_ids, "Judge me")
    assert answer == "Score: 2"
    assert engine.asked == [family.codec.converse().observe("Judge me")]


def test_a_codec_of_text_judges_too() -> None:
    codec = LetterCodec()
    ids = codec.encode_observation("yes", first=True)
    assert answered(codec, ids, "or no")[0] == codec.decode(ids)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose template shows the option `mark`."""
    folder = tmp_path_factory.mktemp("judge") / "model"
    materialize(Policy.tiny(hidden=16, layers=1, heads=2, max_context=64), folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config["chat_template"] = "{{ mark }}" + config["chat_template"].replace(
        "{% for message in messages %}",
        "{% for message in messages %}"
        "{% if 'refuse' in message['content'] %}{{ raise_exception('no') }}{% endif %}",
    )
    file.write_text(json.dumps(config))
    return folder


def test_a_policy_judges_with_its_own_chat_settings(model: Path) -> None:
    """Too long a mark leaves no room in the context, which only its template options tell."""
    one = Sampling(temperature=0, max_tokens=1)

    def judged(prompt: str = "?", **fields: object) -> str:
        policy = Policy.from_pretrained(model, max_context=64, **fields)  # type: ignore[arg-type]
        return asyncio.run(PolicyCompletions(policy, one).complete(prompt))

    assert judged() == judged(template_options={"mark": ""}, chat_format="hermes")
    with pytest.raises(RewardFailedError, match="judge: "):
        judged(template_options={"mark": "m" * 70})
    with pytest.raises(RewardFailedError, match="refuses the messages: no"):
        judged("please refuse")
    with pytest.raises(SettingsError, match=r"chat_format must be one of .*, not 'herms'"):
        judged(chat_format="herms")


def test_other_chat_settings_are_another_judge(model: Path) -> None:
    """Judgements are cached by the name of the model."""
    names = {
        PolicyCompletions(Policy.from_pretrained(model, **fields)).model
        for fields in ({}, {"chat_format": "hermes"}, {"template_options": {"mark": "!"}})
    }
    assert len(names) == 3
