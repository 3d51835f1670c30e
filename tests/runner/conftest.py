"""What tests of whole runs look into: the processes of a run in this one."""

from typing import Any

import pytest

from rollart_flow.runner import session
from rollart_flow.runner.plant import Plant, start_plant


@pytest.fixture
def plants(monkeypatch: pytest.MonkeyPatch) -> list[Plant]:
    """The processes of each run that is started, as they are started."""
    started: list[Plant] = []

    def start(*arguments: Any, **settings: Any) -> Plant:
        started.append(start_plant(*arguments, **settings))
        return started[-1]

    monkeypatch.setattr(session, "start_plant", start)
    return started
