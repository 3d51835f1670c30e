"""Tasks that are made once for all tests of this folder."""

from pathlib import Path

import pytest

from rollart_flow.envs import SweMutants
from tests.envs.swe.tiny import PACKAGE, written


@pytest.fixture(scope="session")
def mutants(tmp_path_factory: pytest.TempPathFactory) -> SweMutants:
    """Two tasks of the tiny package."""
    source = written(tmp_path_factory.mktemp("marks"), PACKAGE)
    store = Path(tmp_path_factory.mktemp("tasks"))
    return SweMutants(
        sources=(str(source),), per_package=2, folder=str(store), held_out_fraction=0.0
    )
