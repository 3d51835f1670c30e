"""Resource classes: what they are good at, and what may stand in for what.

A class is a name such as H800 or H20: a custom resource of a Ray node, one unit per accelerator.
"CPU" is there on every node.
"""

from collections.abc import Mapping
from enum import StrEnum

CPU = "CPU"
GPU = "GPU"
"""What Ray counts by itself; its units are those of another class again, on the same node."""


class Kind(StrEnum):
    """What a class is good at (ROLLART Table 2 and section 5.2)."""

    COMPUTE = "compute"
    """Training, and prefill of long prompts."""
    BANDWIDTH = "bandwidth"
    """Decoding."""
    LOCAL = "local"
    """GPUs that no other stage asks for by name: small models that judge."""
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
"""Classes that are known by name; a `ResourceManager` can be told of others."""

COMPATIBLE: Mapping[str, tuple[str, ...]] = {
    "H800": ("H100", "H20", "H200"),
    "H100": ("H800", "H200", "H20"),
    "H20": ("H200", "H800", "H100"),
    "H200": ("H20", "H100", "H800"),
}
"""What stands in for a class that is full or gone, the best first; CPU is the last resort."""
