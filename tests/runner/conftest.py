"""What tests of whole runs look into: the processes of a run in this one."""

from typing import Any

import pytest

from rollart_flow.runner import session
from rollart_flow.runner.processes import RunProcesses, start_processes


@pytest.fixture
def plants(monkeypatch: pytest.MonkeyPatch) -> list[RunProcesses]:
    """The processes of each run that is started, as they are started."""
    started: list[RunProcesses] = []

    def start(*arguments: Any, **settings: Any) -> RunProcesses:
        started.append(start_processes(*arguments, **settings))
        return started[-1]

    monkeypatch.setattr(session, "start_processes", start)
    return started
