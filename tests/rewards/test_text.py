"""The marked part of an answer."""

from rollart_flow.rewards.text import last_boxed, last_tagged


def test_a_marked_answer_is_the_last_one_that_is_closed() -> None:
    assert last_boxed(r"\boxed{a\boxed{b}}") == "b"
    assert last_boxed(r"\boxed{a} \boxed{b") == "a"
    assert last_boxed(r"} \boxed{{1}} {") == "{1}"
    assert last_boxed("boxed{1}") is None
    assert last_tagged("<a>1</a><a>2", "a") == "1"
    assert last_tagged("</a><a>", "a") is None
