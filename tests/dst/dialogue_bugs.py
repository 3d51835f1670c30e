"""Bugs in attempts of several branches, for the fuzzer to find."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollart_flow.control.rollout.branch import ChainBuilder
from rollart_flow.control.rollout.branch_tree import BranchTree
from rollart_flow.control.rollout.chain_turn import ChainTurn
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.types import Observation, Sample, Trajectory
from tests.dst.bug import Bug


def _forget_the_sub_agent(self: BranchTree) -> None:
    ended = self.current
    _end_sub_agent(self)
    self.all.remove(ended)


def _take_without_the_stop(self: ChainBuilder, turn: ChainTurn, token_ids: Sequence[int]) -> None:
    _take(self, turn, token_ids[:-1])


def _count_turns_of_the_branch(
    self: Recorder, observation: Observation, token_ids: Sequence[int], number: int | None = None
) -> None:
    _observe(self, observation, token_ids)


def _of_the_newest_branch(trajectory: Trajectory, **others: Any) -> Sample:
    newest = trajectory.policy_version_end
    return _sample(replace(trajectory, policy_version_start=newest), **others)


_end_sub_agent, _take, _observe = BranchTree.end_sub_agent, ChainBuilder._take, Recorder.observe
_sample = Sample.of

DIALOGUE_BUGS: Mapping[str, Bug] = {
    "sub-agent-forgotten": Bug(
        BranchTree, "end_sub_agent", _forget_the_sub_agent, ("token fidelity",)
    ),
    "quote-without-stop": Bug(ChainBuilder, "_take", _take_without_the_stop, ("token fidelity",)),
    "turns-of-the-branch": Bug(
        Recorder, "observe", _count_turns_of_the_branch, ("token fidelity",)
    ),
    "newest-branch-counts": Bug(
        Sample, "of", staticmethod(_of_the_newest_branch), ("whole fresh batches",)
    ),
}
"""Bugs by name."""
