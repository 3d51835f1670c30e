"""Resource classes, the kinds of work that suit them, and their fallbacks.

A class is a name such as H800 or H20: a custom resource of a Ray node, one unit per accelerator.
Every node has "CPU".
"""

from collections.abc import Mapping
from enum import StrEnum

CPU = "CPU"
GPU = "GPU"
"""GPUs as Ray counts them; the same devices are also units of another class on their node."""


class Kind(StrEnum):
    """The kind of work that suits a class (ROLLART Table 2 and section 5.2)."""

    COMPUTE = "compute"
    """Training, and prefill of long prompts."""
    BANDWIDTH = "bandwidth"
    """Decoding."""
    LOCAL = "local"
    """GPUs that no other stage requests by name, for small judge models."""
    CPU = "cpu"


KINDS: Mapping[str, Kind] = {
    "H800": Kind.COMPUTE,
    "H100": Kind.COMPUTE,
    "A100": Kind.COMPUTE,
    "H20": Kind.BANDWIDTH,
    "H200": Kind.BANDWIDTH,
    GPU: Kind.LOCAL,
    CPU: Kind.CPU,
}
"""Kinds of the built-in class names; a `ResourceManager` accepts more."""

COMPATIBLE: Mapping[str, tuple[str, ...]] = {
    "H800": ("H100", "H20", "H200"),
    "H100": ("H800", "H200", "H20"),
    "H20": ("H200", "H800", "H100"),
    "H200": ("H20", "H100", "H800"),
}
"""Fallbacks for a class that is full or gone, the best first; CPU is the last resort."""
