"""Tests of optional backends: skipped where the package is missing."""

from importlib.util import find_spec

import pytest

from rollart_flow.weights.mooncake.package import missing_library

with_mooncake = pytest.mark.skipif(bool(missing_library()), reason=missing_library())
"""For tests that talk to Mooncake itself, which needs a library of the system."""


def needs(package: str, extra: str) -> None:
    """Skip the module that calls this where a package is missing.

    The package is looked for and not imported: what runs its own threads and handlers of signals
    stays out of the process of the other tests.
    """
    if find_spec(package) is None:
        pytest.skip(f"needs the extra {extra}", allow_module_level=True)
