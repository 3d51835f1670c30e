"""Versions that are adapters reach an engine as the weights that the trainer has."""

import asyncio
from pathlib import Path

import pytest

from rollart_flow.engines.embedded import EmbeddedEngine
from rollart_flow.engines.version_loader import VersionLoader
from rollart_flow.engines.weight_prefetcher import WeightPrefetcher
from rollart_flow.errors import WeightsError
from rollart_flow.models.folder import load_folder
from tests.engines.conformance import Reference, ask, folders, generate, one_thread, prompt
from tests.engines.lora_versions import ENTRY, publish_adapters

__all__ = ["folders", "one_thread"]  # fixtures

TOLERANCE = 1e-4
"""Of logprobs in float32, in natural log."""


def test_an_engine_that_serves_no_adapters_is_given_merged_weights(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    store, stored = publish_adapters(tmp_path, folders[0])
    store.publish(3, load_folder(folders[1])[1])
    wanted = Reference([*stored, folders[1]])

    async def main() -> None:
        engine = EmbeddedEngine(*load_folder(folders[0]), seed=5, max_batch=4, cached_rows=4)
        pulls = WeightPrefetcher(store)
        loader = VersionLoader(engine, pulls, str(folders[0]))
        assert engine.base is None
        try:
            for version in (1, 3, 2):
                await loader.load(version, (await pulls.take(version))[0])
                request = ask(f"version-{version}", prompt(version, 30))
                answer = await generate(engine, request)
                assert set(answer.versions) == {version}
                expected = wanted.logprobs(request, answer)
                assert answer.logprobs == pytest.approx(expected, abs=TOLERANCE)
        finally:
            await engine.close()

    asyncio.run(main())


def test_an_adapter_without_a_base_or_for_another_model_changes_nothing(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    store, _ = publish_adapters(tmp_path, folders[0])
    parts = store.read(1)
    store.publish(4, parts)

    async def main() -> None:
        engine = EmbeddedEngine(*load_folder(folders[0]), max_batch=4, cached_rows=4)
        loader = VersionLoader(engine, WeightPrefetcher(store), str(folders[0]))
        try:
            with pytest.raises(WeightsError, match="its manifest names no base"):
                await loader.load(4, parts)
            wide = {name: part.repeat(2, 2) for name, part in parts.items()}
            with pytest.raises(WeightsError, match="adapter over version 0 is for another model"):
                await loader.load(1, wide)
            with pytest.raises(WeightsError, match="an adapter, which this engine does not serve"):
                await engine.adapt(1, parts, ENTRY)
            assert engine.version == 0
        finally:
            await engine.close()

    asyncio.run(main())
