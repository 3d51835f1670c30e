"""Transfer of KV caches from a prefill engine to a decode engine over vLLM's NixlConnector.

The prefill engine keeps the blocks of a prompt, and vLLM reports their location. The decode engine
fetches the blocks that it has not cached and notifies the prefill engine, which frees them. The
invariant: this library passes only a `Prefix` between engines; a prefix that is not fetched is
freed when vLLM's lease ends (30 s), or immediately if it was given up.
"""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

from rollart_flow.engines.base import EnginePhase
from rollart_flow.types import Prefix

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import KVTransferConfig
    from vllm.outputs import RequestOutput

LOOPBACK = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "UCX_NET_DEVICES": "lo"}
"""Default addresses at which engines on one machine reach each other."""
_PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT"
_ROLES = {EnginePhase.PREFILL: "kv_producer", EnginePhase.DECODE: "kv_consumer"}
_CACHED_THERE = "remote_prefill_cached_tokens"
_FIRST_PORT, _PORTS = 15_000, 16_000
"""First port and number of ports to try; they lie below the system's ephemeral ports, of which vLLM
uses many at startup."""


def connector(phase: EnginePhase, *, on_cpu: bool) -> KVTransferConfig:
    """Set this process's environment, and return the connection to the other phase."""
    from vllm.config import KVTransferConfig

    for name, value in LOOPBACK.items():
        os.environ.setdefault(name, value)
    os.environ[_PORT] = str(_free_port(os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"]))
    return KVTransferConfig(
        kv_connector="NixlConnector",
        kv_role=_ROLES[phase],
        kv_load_failure_policy="recompute",
        **({"kv_buffer_device": "cpu"} if on_cpu else {}),
    )


def prefill_parameters() -> SamplingParams:
    """Return vLLM's settings for a prompt that is computed for another engine."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0,
        max_tokens=1,  # vLLM samples at least one token, which is discarded
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}},
    )


def held(output: RequestOutput) -> Prefix | None:
    """Return the prefix that a prefill's last output holds, or None if it was aborted."""
    spans = output.outputs[0].weight_versions
    if not output.kv_transfer_params or not spans:
        return None
    # The decode engine would report this instead of its own count.
    told = {k: v for k, v in output.kv_transfer_params.items() if k != _CACHED_THERE}
    return Prefix(int(spans[-1].version), json.dumps(told))


def address(prefix: Prefix) -> dict[str, Any]:
    """Return vLLM's parameters for a request whose prompt is fetched."""
    found: dict[str, Any] = json.loads(prefix.address)
    return found


def _free_port(host: str) -> int:
    """Return a free port; the search starts at an offset that depends on the process id."""
    for offset in range(_PORTS):
        port = _FIRST_PORT + (os.getpid() + offset) % _PORTS
        with socket.socket() as candidate:
            try:
                candidate.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no port of {host} from {_FIRST_PORT} on is free")
