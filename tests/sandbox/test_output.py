"""Output that is kept in part."""

import pytest

from rollart_flow.sandbox.output import KeptOutput


@pytest.mark.parametrize("piece", [1, 3, 7, 100])
def test_the_first_and_the_last_half_are_kept(piece: int) -> None:
    data = bytes(range(65, 91)) * 3
    kept = KeptOutput(20)
    for start in range(0, len(data), piece):
        kept.add(data[start : start + piece])
    assert kept.text() == f"{data[:10].decode()}\n[58 bytes left out]\n{data[-10:].decode()}"


@pytest.mark.parametrize("size", [0, 1, 10, 19, 20])
def test_short_output_is_kept_whole(size: int) -> None:
    kept = KeptOutput(20)
    kept.add(b"x" * size)
    assert kept.text() == "x" * size


def test_a_cut_character_and_foreign_bytes_are_replaced() -> None:
    kept = KeptOutput(4)
    kept.add("ä€ä".encode() + b"\xff")
    assert "�" in kept.text()
