"""KV caches on their way from a prefill engine to a decode engine, over vLLM's NixlConnector.

The prefill engine keeps the blocks of a prompt, and vLLM tells where. The decode engine fetches
those that it has not cached, and tells the other, which frees them. The invariant: between
engines nothing but a `Prefix` is exchanged by us, and one that nobody fetches is freed when the
lease of vLLM ends (30 s), or at once where it was given up.
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
"""Where engines reach each other, if the user has not said otherwise: on one machine."""
_PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT"
_ROLES = {EnginePhase.PREFILL: "kv_producer", EnginePhase.DECODE: "kv_consumer"}
_CACHED_THERE = "remote_prefill_cached_tokens"
_FIRST_PORT, _PORTS = 15_000, 16_000
"""Below the ports that systems give out by themselves, of which vLLM takes many as it starts."""


def connector(phase: EnginePhase, *, on_cpu: bool) -> KVTransferConfig:
    """How an engine is connected to those of the other phase; sets this process's environment."""
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
    """vLLM's settings for a prompt that is computed for another engine."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0,
        max_tokens=1,  # vLLM draws at least one, which nobody gets
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}},
    )


def held(output: RequestOutput) -> Prefix | None:
    """What the engine holds after the last output of a prefill; None if that was aborted."""
    spans = output.outputs[0].weight_versions
    if not output.kv_transfer_params or not spans:
        return None
    # The decode engine would report this in place of what it has itself.
    told = {k: v for k, v in output.kv_transfer_params.items() if k != _CACHED_THERE}
    return Prefix(int(spans[-1].version), json.dumps(told))


def address(prefix: Prefix) -> dict[str, Any]:
    """vLLM's parameters of a request whose prompt is fetched."""
    found: dict[str, Any] = json.loads(prefix.address)
    return found


def _free_port(host: str) -> int:
    """A port that nothing listens on; engines of other processes begin to look elsewhere."""
    for offset in range(_PORTS):
        port = _FIRST_PORT + (os.getpid() + offset) % _PORTS
        with socket.socket() as candidate:
            try:
                candidate.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no port of {host} from {_FIRST_PORT} on is free")
