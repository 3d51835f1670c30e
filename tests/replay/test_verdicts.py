"""A reward function that is replayed sees the verdicts that it saw in the run."""

from pathlib import Path

from rollart_flow.replay.stored_attempts import read_attempt
from rollart_flow.store import open_run
from rollart_flow.types.verdicts import Verdict
from rollart_flow.verdict_rows import verdicts_table
from tests.builders import table, trajectory
from tests.runs import new_writer


def test_verdicts_of_the_environment_come_back_and_those_of_the_reward_do_not(
    tmp_path: Path,
) -> None:
    verdicts = (Verdict(key="test_a", passed=False, message="1 != 2", seconds=0.5),)
    judged = trajectory(verdicts=verdicts, verifier="9f", reward_parts={"form": 0.5})
    plain = trajectory("h")
    rows = verdicts_table([judged, plain])
    assert rows is not None
    with new_writer(tmp_path) as writer:
        writer.commit_many({"trajectories": table(judged, plain), "verdicts": rows})
    run = open_run(writer.uri)
    assert read_attempt(run, "g-00")[1] == judged
    assert read_attempt(run, "h-00")[1] == plain
