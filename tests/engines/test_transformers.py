"""The engine over models of transformers keeps the promises of every engine."""

import asyncio
from pathlib import Path

import pytest
import torch

from rollart_flow.engines.base import Engine
from rollart_flow.engines.embedded import EmbeddedEngine
from rollart_flow.engines.registry import EngineOptions, build_engine, check_engine
from rollart_flow.errors import SettingsError
from rollart_flow.models.architectures import TRANSFORMERS
from rollart_flow.models.folder import load_folder, load_pretrained, save_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.tokenizer import tokenizer_files
from rollart_flow.types import GenerationRequest, Sampling
from tests.engines.conformance import (
    EngineConformance,
    folders,
    generate,
    one_thread,
    prompt,
    reference,
)
from tests.models.hf.tiny import plain_model, write_model

__all__ = ["folders", "one_thread", "reference"]  # fixtures


class TestTransformersEngine(EngineConformance):
    """All that holds for every engine, of a Qwen3 that transformers computes."""

    def make(self, folder: Path) -> Engine:
        """Small in every respect."""
        return EmbeddedEngine(
            *load_folder(folder, TRANSFORMERS),
            seed=5, max_batch=12, cached_rows=9, chunk_tokens=4, eager=True,
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "mixtral", "gpt_oss", "gpt2"])
def test_logprobs_are_those_of_the_architecture(kind: str, tmp_path: Path) -> None:
    write_model(kind, tmp_path / "theirs")
    config, tensors = load_pretrained(tmp_path / "theirs")
    save_folder(tmp_path / "model", config, tensors, tokenizer_files(tmp_path / "theirs"))
    policy = Policy.from_pretrained(
        tmp_path / "model", engine="transformers", max_context=64, max_batch=3
    )
    requests = [
        GenerationRequest(str(at), prompt(at, 12 + 3 * at), Sampling(max_tokens=20))
        for at in range(5)
    ]

    async def answers() -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        engine = build_engine(policy, str(tmp_path / "model"), EngineOptions(seed=1))
        try:
            done = await asyncio.gather(*(generate(engine, request) for request in requests))
        finally:
            await engine.close()
        return [(each.token_ids, each.logprobs) for each in done]

    plain = plain_model(tmp_path / "theirs")
    for request, (tokens, logprobs) in zip(requests, asyncio.run(answers()), strict=True):
        chain = torch.tensor([[*request.prompt_ids, *tokens]])
        with torch.no_grad():
            every = plain(input_ids=chain).logits[0].log_softmax(-1)
        begin = len(request.prompt_ids)
        wanted = [float(every[begin + at - 1, token]) for at, token in enumerate(tokens)]
        assert logprobs == pytest.approx(wanted, abs=1e-4)


def test_the_embedded_engine_names_engines_for_other_architectures(tmp_path: Path) -> None:
    write_model("llama", tmp_path)
    with pytest.raises(SettingsError, match=r"architectures \['LlamaFor.*engine=vllm, or transf"):
        check_engine(Policy.from_pretrained(tmp_path))
