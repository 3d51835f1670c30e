"""Measures of parts of a step, which the papers print beside speedups."""

from tests.benchmarks.paper.figures import Finished


def push_s(run: Finished) -> float:
    """Mean time of a weight push [s]."""
    return run.row.report.push_s


def transfer_s(run: Finished) -> float:
    """Push and exposed pull of the weights, one after the other [s]."""
    return run.row.report.push_s + run.row.report.exposed_pull_s


def training_share(run: Finished) -> float:
    """Share of the step time in which training works, or devices switch to it and back."""
    return run.row.report.utilization["training"].busy


def reset_share(run: Finished) -> float:
    """Share of the step time that the longest reset of the batch takes."""
    return run.details.reset_s / run.row.report.step_s


def reset_of_rollout(run: Finished) -> float:
    """Share of the rollout time that the longest reset of the batch takes."""
    return run.details.reset_s / run.rollout_s


def longest_wait(run: Finished) -> float:
    """Largest share of a step in which training waited for its batch."""
    return run.details.longest_wait


def mean_wait(run: Finished) -> float:
    """Share of all steps in which training waited for its batch."""
    report = run.row.report
    return report.bubbles_s["batch and weights"] / report.step_s


def longest_response(run: Finished) -> float:
    """Longest response of a batch over the mean response."""
    return run.details.longest_response


def most_turns(run: Finished) -> float:
    """Most turns of an attempt of a batch over the mean."""
    return run.details.most_turns
