"""Conversations of others as the trajectories of a new run."""

from rollart_flow.importing.import_run import ImportResult, import_conversations

__all__ = ["ImportResult", "import_conversations"]
