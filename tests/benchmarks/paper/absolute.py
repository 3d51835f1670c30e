"""The absolute numbers that ROLLART and ROLL Flash publish, and the simulation that predicts each.

The invariant: an observation holds what a paper prints in numbers, with its place; nothing is read
off a plot, and nothing is divided by anything else, unless the paper prints only the quotient.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollart_flow.control.schedule.schedules import rollart, sync, sync_plus
from rollart_flow.simulation.latencies import LogNormal
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper import measures
from tests.benchmarks.paper.figures import (
    Finished,
    Measure,
    in_turns,
    reward_utilization,
    rollout_s,
    step_s,
)
from tests.benchmarks.paper.rollart.characterization import judged as software_judged
from tests.benchmarks.paper.rollart.characterization import software as software_launched
from tests.benchmarks.paper.scenarios import (
    JUDGED_STEPS,
    MIXTURE_OF_EXPERTS,
    MODELS,
    Scenarios,
)

_FILE = Path(__file__).with_name("absolute.csv")


@dataclass(frozen=True, slots=True)
class Observation:
    """One number of a paper."""

    paper: str
    place: str
    """Figure, table or section."""
    quantity: str
    value: float
    unit: str
    conditions: str
    predicted_by: str | None
    """Key of `predictions` or `formulas`; None if nothing in the simulation stands for it."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The simulation and the measure that stand for an observation."""

    case: Case
    measure: Measure
    step_of: Case | None = None
    """A case whose step time divides the measure: an observation that is a share of a step."""

    @property
    def cases(self) -> tuple[Case, ...]:
        return (self.case,) if self.step_of is None else (self.case, self.step_of)

    def value(self, runs: Mapping[Case, Finished]) -> float:
        """The number, from the results of its cases."""
        whole = 1.0 if self.step_of is None else step_s(runs[self.step_of])
        return self.measure(runs[self.case]) / whole


def observations() -> tuple[Observation, ...]:
    """All published absolute numbers, in the order of the papers."""
    with _FILE.open(newline="", encoding="utf-8") as file:
        return tuple(
            Observation(
                row["paper"],
                row["place"],
                row["quantity"],
                float(row["value"]),
                row["unit"],
                row["conditions"],
                row["predicted_by"] or None,
            )
            for row in csv.DictReader(file)
        )


def predictions(given: Scenarios, steps: int = 3) -> Mapping[str, Prediction]:
    """What stands for the observations under some parameters, by the key they name."""
    software, silent = given.software(), given.software(silent=True)
    whole = Case(software, sync(), steps=2)
    failing = Case(software_launched(given, failing=True), sync_plus(), steps=4)
    found = {
        "software step": Prediction(whole, step_s),
        "software training share": Prediction(whole, measures.training_share),
        "software reset share": Prediction(whole, measures.reset_share),
        "software failures": Prediction(failing, step_s),
        "software judge": Prediction(software_judged(given), reward_utilization),
        "software environments": Prediction(Case(silent, sync(), steps=2), rollout_s, whole),
    }
    for kind, serverless in (("local", False), ("serverless", True)):
        case = Case(given.judged(serverless=serverless), rollart(1), steps=JUDGED_STEPS)
        found[f"judged {kind}"] = Prediction(case, step_s)
        found[f"judge's utilization {kind}"] = Prediction(case, reward_utilization)
    filtered = given.filtered(0), given.filtered(16)
    found["filtered batch"] = Prediction(Case(filtered[0], sync(), steps=4), rollout_s)
    found["filtered queue"] = Prediction(Case(filtered[1], sync_plus(), steps=4), rollout_s)
    together = sync_plus().switched(prompt_replication=False)
    for prompts, responses in ((32, 16), (64, 16), (16, 32)):
        scenario, key = given.replicated(prompts, responses), f"replicated {prompts}x{responses}"
        found[key] = Prediction(Case(scenario, sync_plus(), steps=steps), rollout_s)
        found[f"{key} together"] = Prediction(Case(scenario, together, steps=steps), rollout_s)
    for groups, size in ((32, 8), (36, 12)):
        case = Case(given.redundant_environments(groups, size), sync_plus(), steps=steps)
        found[f"redundant {groups}x{size}"] = Prediction(case, rollout_s)
    return found | _of_nodes(given)


def _of_nodes(given: Scenarios) -> dict[str, Prediction]:
    """Table 5."""
    found: dict[str, Prediction] = {}
    for model in (MODELS[-1], MIXTURE_OF_EXPERTS):
        for prefill in (1, 2):
            for kind, apart in (("apart", True), ("together", False)):
                scenario = given.nodes(model, prefill, disaggregate=apart)
                key = f"nodes {prefill} {kind} {model.name.removeprefix('Qwen3-')}"
                found[key] = Prediction(in_turns(scenario, sync_plus()), rollout_s)
    return found


def formulas(given: Scenarios) -> Mapping[str, float]:
    """Predictions that follow from the parameters alone, by key: Tables 3 and 4 [s], and the mean
    length of ROLL Flash section 3.2, which hardly any response is cut for [tokens]."""
    thought = given.parameters.thought
    if not isinstance(thought.response, LogNormal):
        raise TypeError(f"responses of {thought.name} are no LogNormal")
    variance = thought.response.sigma**2 + thought.task_spread**2
    found = {"thought length": thought.response.median * math.exp(variance / 2)}
    for model in MODELS:
        scenario, size = given.affine(model), model.name.removeprefix("Qwen3-")
        found[f"rdma {size}"] = given.parameters.within.pull_s(model)
        found[f"push {size}"] = scenario.push_s
        found[f"pull {size}"] = found[f"tcp {size}"] = scenario.pull_s
        found[f"exposed {size}"] = scenario.exposed_s
    return found
