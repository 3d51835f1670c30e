"""Execution of pipelines: new runs, resumed runs, and forks."""

from rollart_flow.runner.fork import fork
from rollart_flow.runner.runs import RunResult, resume, run

__all__ = ["RunResult", "fork", "resume", "run"]
