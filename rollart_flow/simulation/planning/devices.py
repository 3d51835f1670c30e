"""The accelerators that a plan may be made for, and hardware as text: "H800=96,H20=32"."""

from collections.abc import Mapping

from rollart_flow.errors import SettingsError
from rollart_flow.simulation.hardware import H20, H800, Device

CPU = "CPU"

A100 = Device("A100", tflops=312, memory_gb=80, bandwidth_tb_s=2.039, link_gb_s=600)
H100 = Device("H100", tflops=989.5, memory_gb=80, bandwidth_tb_s=3.35, link_gb_s=900)
H200 = Device("H200", tflops=989.5, memory_gb=141, bandwidth_tb_s=4.8, link_gb_s=900)
"""The SXM modules, as in NVIDIA's data sheets."""
DEVICES: Mapping[str, Device] = {d.name: d for d in (A100, H20, H100, H200, H800)}
"""Accelerators with a model of their speed, by the resource class of that name."""


def read_hardware(text: str) -> dict[str, int]:
    """Return the number of devices by resource class, from a text such as "H800=96,H20=32".

    Raises:
        SettingsError: the text is of another form, a class is unknown or named twice, or a number
            is not at least 1.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, count = (word.strip() for word in part.partition("="))
        if not equals or not name:
            raise SettingsError(f"--hardware is like H800=96,H20=32, got {text!r}")
        if name not in DEVICES and name != CPU:
            raise SettingsError(
                f"--hardware {name}: there is no model of its speed; take {', '.join(DEVICES)}, or "
                "CPU with --from RUN"
            )
        if name in found:
            raise SettingsError(f"--hardware names {name} twice; add the devices up")
        if not count.isdecimal() or not int(count):
            raise SettingsError(f"--hardware {name}={count}: give a number of devices from 1")
        found[name] = int(count)
    return found
