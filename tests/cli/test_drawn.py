"""`rollart show RUN --trajectory SOURCE/ID`: a trajectory that a step drew from another run."""

import json
import shutil
from pathlib import Path

from tests.cli.shell import refused, rollart
from tests.runs import learning_runs


def test_a_drawn_trajectory_is_shown_like_one_of_its_own_run(tmp_path: Path) -> None:
    other, learner = learning_runs(tmp_path)
    theirs = json.loads(rollart("show", other.uri, "--trajectory", "g-01", "--json").out)
    drawn = json.loads(rollart("show", learner.uri, "--trajectory", "other/g", "--json").out)
    source = {"run": other.uri, "seq": 2, "version": 1}
    steps = [{"step": 1, "staleness": 0, "lag": None, "rescored": None}]
    assert drawn == {**theirs, "steps": steps, "source": source}
    said = rollart("show", learner.uri, "--trajectory", "other/g-01").out
    shown = f"drawn from {other.uri}, seq 2 of its table at version 1"
    assert "".join(shown.split()) in "".join(said.split())  # lines break anywhere
    assert "trained on in step 1, exempt from the bound" in said
    assert "turn 1" in said


def test_one_that_was_drawn_from_the_run_itself_is_shown_too(tmp_path: Path) -> None:
    _, learner = learning_runs(tmp_path)
    own = json.loads(rollart("show", learner.uri, "--trajectory", "self/own-00", "--json").out)
    assert (own["trajectory_id"], own["source"]["run"]) == ("own-00", learner.uri)


def test_a_run_that_is_gone_or_replaced_is_named(tmp_path: Path) -> None:
    other, learner = learning_runs(tmp_path)
    words = ("show", learner.uri, "--trajectory", "other/g-01")
    assert "no trajectory 'other/x'" in refused(rollart(*words[:3], "other/x"))
    shutil.rmtree(other.uri)
    assert "are gone with it; restore its folder" in refused(rollart(*words), 1)
