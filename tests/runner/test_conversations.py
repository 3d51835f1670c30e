"""A run whose environment shows messages and has tools: stored and replayed."""

import json

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay import replay_trajectory
from rollart_flow.store import Run, open_run
from rollart_flow.types import Role
from tests.runner.talking import TALKING

TEMPLATE = (
    "{% if tools %}<user>{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<assistant>{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<eos>"
    "{% else %}<user>{{ message['role'] }}: {{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
PIPELINE = (
    TALKING
    + """
policy = Policy.from_pretrained(FOLDER, max_context=512)
scored = reward(rollout(tasks(Talking(turns=2, max_turns=4), group_size=4), policy, max_tokens=6))
pipeline = Pipeline("talk", train(buffer(scored, batch_size=8, alpha=1), policy, grpo(), steps=2))
"""
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("talk")
    materialize(Policy.tiny(hidden=16, layers=1, heads=2), folder / "model")
    config = folder / "model" / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
    text = PIPELINE.replace("FOLDER", repr(str(folder / "model")))
    loaded = load_source(text, folder / "talk.py")
    return open_run(runner.run(loaded, store=str(folder), executor="inline").uri)


def test_the_conversation_of_every_trajectory_is_stored(run: Run) -> None:
    rows = run.trajectories.filter(pl.col("outcome") == "completed").collect()
    assert rows.height >= 16
    for row in rows.iter_rows(named=True):
        messages = json.loads(row["messages"])
        roles = [message["role"] for message in messages if message["turn"] == 0]
        assert roles == [Role.SYSTEM, Role.USER, Role.ASSISTANT]
        assert messages[0]["content"] == "Be brief."
        assert [tool["function"]["name"] for tool in json.loads(row["tools"])] == ["double"]
        said = [message["content"] for message in messages if message["role"] == Role.ASSISTANT]
        assert said == [turn["action"] for turn in row["turns"]]
    assert set(rows.select("tool_calls", "tool_errors").iter_rows()) == {(0, 0)}


def test_a_conversation_is_replayed(run: Run) -> None:
    trained = run.trajectories.join(run.batches, on="trajectory_id", how="semi").collect()
    replayed = replay_trajectory(run.uri, trained["trajectory_id"][0])
    assert replayed.equal, replayed.divergence
    assert [turn["observation_equal"] for turn in replayed.turns] == [True] * len(replayed.turns)
