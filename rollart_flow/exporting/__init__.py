"""Export of a version of a run's policy as a folder that other tools load."""

from rollart_flow.exporting.model import Exported, export

__all__ = ["Exported", "export"]
