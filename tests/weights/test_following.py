"""How a reader waits for the parts of a version."""

import threading
from itertools import count

import pytest

from rollart_flow.errors import WeightsError
from rollart_flow.weights.following import Following, announce


def test_what_is_there_is_not_waited_for() -> None:
    following = Following(patience_s=0)
    assert following.wait_for(lambda: "part", "a part") == "part"
    assert following.waited_s == 0


def test_a_publisher_in_this_process_wakes_the_reader() -> None:
    there, looks = threading.Event(), count()

    def publish() -> None:
        there.set()
        announce()

    def look() -> bool | None:
        if next(looks) == 2:
            threading.Thread(target=publish).start()
        return there.is_set() or None

    following = Following()
    assert following.wait_for(look, "a part")
    assert following.waited_s > 0


def test_what_does_not_appear_is_waited_for_only_so_long() -> None:
    with pytest.raises(WeightsError, match=r"^a part is missing after 0\.01 s$"):
        Following(0.01).wait_for(lambda: None, "a part")


def test_each_part_that_appears_renews_the_patience() -> None:
    following, looks = Following(0.3), count()
    for _ in range(20):
        following.wait_for(lambda: next(looks) % 5 == 4 or None, "a part")
    assert following.waited_s > 0


def test_a_reader_that_is_ended_takes_what_is_there_but_does_not_wait() -> None:
    following = Following()
    following.end()
    assert following.wait_for(lambda: "part", "a part") == "part"
    with pytest.raises(WeightsError, match="nobody waits for a part any more"):
        following.wait_for(lambda: None, "a part")
