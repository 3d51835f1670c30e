"""What a domain offers by default."""

import pytest

from rollart_flow.envs import Arithmetic
from rollart_flow.errors import SettingsError
from rollart_flow.sandbox.boxes import LocalBoxes


def test_a_domain_without_a_verifier_judges_no_diff() -> None:
    with pytest.raises(SettingsError, match=r"^domain 'arithmetic' keeps no verifier"):
        Arithmetic().judge("{}", "", LocalBoxes())
