"""Runs pipelines: from a plan to a folder of tables, again after an interruption, and as a fork."""

from rollart_flow.runner.fork import fork
from rollart_flow.runner.runs import RunResult, resume, run

__all__ = ["RunResult", "fork", "resume", "run"]
