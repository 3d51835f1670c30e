"""Tests of the simulation that are coroutines run under virtual time."""

from tests.control.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
