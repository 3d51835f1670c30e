"""Conversations, tools and boxes: whatever an environment shows or asks for is an outcome.

The values are those of `test_hostile_values`; here they stand within messages, tools, calls of
boxes, and values that make attempts branch.
"""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.envs.adapter import InlineEnvironment
from rollart_flow.simulation import run
from rollart_flow.types import AttemptLimits, Message, Outcome, Role, Tool, ToolCall, Trajectory
from rollart_flow.types.branching import Retry, Return, SubAgent
from tests.control.rollout.test_branches import Engine, NumberedCodec
from tests.control.rollout.test_dialogue import ADD, ASSIGNMENT
from tests.dst.environments import wall
from tests.dst.log import EventLog
from tests.test_hostile_values import CASES, ERRORS, TEXT, VALUES, Only, Scripted, stored

CALLS = st.builds(
    ToolCall,
    st.one_of(TEXT, VALUES),
    st.one_of(TEXT, VALUES),
    st.one_of(VALUES, st.dictionaries(TEXT, VALUES)),
    st.one_of(st.none(), VALUES),
    st.one_of(TEXT, VALUES),
)
FORMS = st.fixed_dictionaries(
    {"role": st.one_of(st.sampled_from([*map(str, Role)]), VALUES)},
    optional={
        "content": st.one_of(VALUES, st.lists(st.fixed_dictionaries({"type": VALUES}))),
        "tool_calls": st.one_of(VALUES, st.lists(VALUES, max_size=2)),
        "name": VALUES,
        "reasoning_content": VALUES,
        "tool_call_id": VALUES,
    },
)
MESSAGES = st.one_of(
    st.builds(
        Message,
        st.one_of(st.sampled_from(Role), VALUES),
        st.one_of(TEXT, VALUES),
        st.one_of(st.none(), VALUES),
        st.one_of(st.just(()), st.lists(CALLS, max_size=2).map(tuple), VALUES),
        st.one_of(st.none(), TEXT, VALUES),
        st.one_of(st.none(), TEXT, VALUES),
        st.one_of(st.just(()), st.lists(VALUES, max_size=2).map(tuple)),
    ),
    FORMS,
    VALUES,
)
SHOWN = st.one_of(MESSAGES, st.lists(MESSAGES, min_size=1, max_size=3), TEXT)
TOOLS = st.one_of(
    VALUES,
    st.lists(
        st.one_of(
            st.builds(
                Tool,
                st.one_of(TEXT, st.just("add"), VALUES),
                st.one_of(TEXT, VALUES),
                st.one_of(VALUES, st.dictionaries(TEXT, VALUES), st.just({"type": "no type"})),
            ),
            VALUES,
        ),
        max_size=2,
    ),
)
BRANCH = st.one_of(
    st.builds(SubAgent, SHOWN, TOOLS),
    st.builds(Retry, st.one_of(VALUES, st.just(10**5000)), SHOWN),
    st.fixed_dictionaries(
        {"branch": st.one_of(st.sampled_from(["sub_agent", "return", "retry"]), VALUES)},
        optional={"messages": SHOWN, "tools": TOOLS, "turn": VALUES, "observation": SHOWN},
    ),
)
BRANCHES = st.one_of(
    BRANCH,
    st.builds(Return, st.one_of(SHOWN, BRANCH)),
    st.builds(Return, st.builds(Return, st.one_of(SHOWN, BRANCH))),
)


class Conversing(Scripted):
    """A scripted environment that shows messages and has tools."""

    converses = True

    def __init__(self, first: object, then: object, tools: Any) -> None:
        super().__init__(first, then)
        self._tools = tools

    @property
    def tools(self) -> Any:  # type: ignore[override]  # given by the test
        return self._give(self._tools)


def branches_of(first: object, shown: object, tools: object = (ADD,)) -> list[Trajectory]:
    """The rows of an attempt at a scripted environment, whose policy calls a tool."""
    domain: Any = Only(Conversing((first, {}), (shown, 0.5, False, False, {}), tools))
    said: list[Any] = [{"calls": [["add", {"a": 1, "b": 2}]]}, {"text": "yes"}]
    manager = EnvManager(
        ASSIGNMENT,
        lambda: InlineEnvironment(domain),
        NumberedCodec(),
        LLMProxy([Engine(said)], EventLog()),
        AttemptLimits(max_turns=4, context_tokens=2_000, step_timeout_s=60),
        wall,
    )
    rows = run(manager.run())
    stored(*rows)
    for row in rows:
        for text in (row.messages, row.tools):
            json.loads(text or "[]")
    return list(rows)


@CASES
@given(shown=st.one_of(SHOWN, ERRORS))
def test_the_first_messages(shown: object) -> None:
    (row, *_) = branches_of(shown, "go on")
    assert row.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED) or row.error


@CASES
@given(shown=st.one_of(SHOWN, BRANCHES))
def test_what_a_step_shows(shown: object) -> None:
    (row, *_) = branches_of("go", shown)
    assert row.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED) or row.error


@CASES
@given(tools=st.one_of(TOOLS, ERRORS))
def test_tools(tools: object) -> None:
    (row, *_) = branches_of("go", "go on", tools)
    assert row.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED) or row.error
