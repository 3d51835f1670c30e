"""What travels between a sender and its receivers is JSON, also handles of GPU memory."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from rollart_flow.errors import WeightsError
from rollart_flow.weights.broadcast.wire import (
    Wire,
    WireClient,
    announce,
    announced,
    line,
    read,
    spelled,
)

HANDLE = (
    torch.Tensor, torch.Size([4, 2]), (2, 1), 0, torch.storage.TypedStorage, torch.uint8, 0,
    b"\x00\xffhandle", 4096, 512, False, b"\x01counter", 3, b"\x02event", True,
)  # fmt: skip
"""As `reduce_tensor` gives it for a tensor on a GPU."""


def test_a_handle_of_gpu_memory_comes_out_as_it_went_in() -> None:
    info: dict[str, Any] = {
        "names": ["w"],
        "ipc_handles": {"GPU-1": HANDLE},
        "ipc_handles_pickled": None,
    }
    travelled = json.loads(json.dumps(spelled(info)))
    found = read(travelled)
    assert found["names"] == ["w"]
    assert found["ipc_handles"]["GPU-1"] == HANDLE
    assert "ipc_handles_pickled" not in found, "nothing is unpickled"
    plain = {"names": ["w"], "dtype_names": ["float32"], "shapes": [[2]]}
    assert read(spelled(plain)) == plain


def test_only_a_handle_can_come_out_of_a_handle() -> None:
    said = spelled({"ipc_handles": {"GPU-1": HANDLE}})
    said["ipc_handles"]["GPU-1"]["dtype"] = "load"
    with pytest.raises(ValueError, match="'load' is no dtype"):
        read(said)


def test_a_sender_is_found_in_the_folder_of_weights(tmp_path: Path) -> None:
    uri = str(tmp_path / "weights")
    assert announced(uri) is None
    for port in (1234, 4321):
        announce(uri, "127.0.0.1", port)
        assert announced(uri) == ("127.0.0.1", port)


def test_calls_are_made_one_after_the_other_and_a_receiver_that_leaves_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        client, other = WireClient(Wire(ours)), Wire(theirs)
        init = thread.submit(client.init_weight_transfer_engine, {"world_size": 2})
        assert other.hear() == {"call": "init", "info": {"world_size": 2}}
        other.say({"done": True})
        init.result()
        update = thread.submit(client.update_weights, {"names": ["w"]})
        assert other.hear() == {"call": "update", "info": {"names": ["w"]}}
        theirs.shutdown(socket.SHUT_RDWR)
        with pytest.raises(WeightsError, match="left in the middle of an update"):
            update.result()
        assert other.hear() is None


def test_a_message_is_one_line() -> None:
    assert line({"said": "a\nb"}).count(b"\n") == 1
