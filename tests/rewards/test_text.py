"""The marked part of an answer."""

import json
from dataclasses import replace

from rollart_flow.episodes import whole
from rollart_flow.rewards.text import answer_of, last_boxed, last_tagged
from rollart_flow.types import Trajectory
from tests.builders import TRAJECTORY
from tests.test_episodes import TURN


def test_a_marked_answer_is_the_last_one_that_is_closed() -> None:
    assert last_boxed(r"\boxed{a\boxed{b}}") == "b"
    assert last_boxed(r"\boxed{a} \boxed{b") == "a"
    assert last_boxed(r"} \boxed{{1}} {") == "{1}"
    assert last_boxed("boxed{1}") is None
    assert last_tagged("<a>1</a><a>2", "a") == "1"
    assert last_tagged("</a><a>", "a") is None


def test_the_answer_of_several_branches_is_that_of_the_last_turn() -> None:
    """A sub-agent's branch comes after the one that goes on with its answer."""

    def said(turn: int, text: str) -> dict[str, object]:
        return {"turn": turn, "role": "assistant", "content": text, "reasoning_content": "hm"}

    def branch(number: int, *turns: tuple[int, str]) -> Trajectory:
        return replace(
            TRAJECTORY,
            branch=number,
            turns=tuple(replace(TURN, action=text) for _, text in turns),
            messages=json.dumps([said(*turn) for turn in turns]),
        )

    lead, agent = branch(0, (0, "ask"), (2, "<a>60</a>")), branch(1, (1, "<a>30</a>"))
    episode = whole((lead, agent))
    assert episode.turns[-1].action == "<a>30</a>"
    assert answer_of(episode) == "<a>60</a>"
    assert answer_of(episode, "a") == "60"
    assert answer_of(replace(episode, messages=None), "a") == "30"
