"""Which recipes learn on par at small staleness (ROLL Flash, Takeaway 4): steps to a goal.

Each recipe trains the demo's policy on its two domains, at an exact staleness of alpha versions,
until both have 0.8 sampled success; beside it stands on-policy GRPO, alpha 0. All runs of a seed
have the same initial policy and tasks. The whole table takes hours, so its runs are stored beside
this module, and `make bench` prints their table and repeats a few of them. The command

    python -m tests.benchmarks.bench_learning --recipes grpo,tis --alphas 1,2,8 --seeds 3

runs the missing ones, appends a JSON line for each, and prints the table of all that it names. A
stored run counts as long as the settings of the demo and of the recipe are unchanged.

What the stored runs say, three seeds each: the takeaway holds where the loss bounds how far old
tokens push. At alpha 1, on-policy GRPO takes 0.63 to 1.00 of the steps of GRPO, decoupled PPO,
TOPR, OPSM, DAPO, REINFORCE++, TIS and IcePop as corrections, IPA and Kimi's; at alpha 2 still 0.72
and more of those of GRPO, decoupled PPO and TOPR. The others rarely reach the goal there. For
Dr.GRPO, RLOO, V-trace, double-sided masks and TIS as a loss that is staleness and nothing else:
with the same settings at alpha 0 they need 42 to 64 steps (seed 0), on-policy GRPO 49. Each batch
makes eight updates, chosen for a clipped loss, and each version of lag puts eight more between a
token and its gradient. GSPO and PPO with a critic miss the goal at alpha 0 as well: they would need
other settings than the demo's. At alpha 8 only TOPR, whose negatives fade as they become unlikely,
reaches it with every seed, at twice the steps.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from tests.benchmarks.learning import GOAL, PIPELINE, demo, learn
from tests.benchmarks.recipes import ON_PAR, ON_PAR_FOR, RECIPES, REPEATED
from tests.benchmarks.records import Record, record

STORED = Path(__file__).with_name("learning.jsonl")
ALPHAS, SEEDS = (1, 2, 8), 3
"""Seeds of the whole table."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    recipe: str
    alpha: int
    seed: int
    limit: int
    """Most training steps."""

    @property
    def key(self) -> str:
        """The key that tells runs apart, including the settings of recipe and demo."""
        _, _, demo_settings = PIPELINE.read_text().partition('"""\n\n')  # without its docstring
        settings = demo_settings + str(RECIPES[self.recipe])
        return f"{self} of {blake2b(settings.encode(), digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a case; its fields are those of a line."""

    recipe: str
    alpha: int
    seed: int
    key: str
    steps: int | None
    """Steps until the goal; None if it was not reached."""
    trained: int
    success: dict[str, float]
    best: float
    cpu_s: float
    """CPU time of the process, independent of other work on the machine [s]."""

    @property
    def count(self) -> float:
        """Steps until the goal; infinite if it was not reached."""
        return math.inf if self.steps is None else self.steps


def cases(recipes: Sequence[str], alphas: Sequence[int], seeds: int, limit: int) -> list[Case]:
    """On-policy GRPO, then the others; one seed of everything before the next seed."""
    named = [("grpo", 0), *((recipe, alpha) for alpha in alphas for recipe in recipes)]
    return [
        Case(recipe, alpha, seed, limit)
        for seed in range(seeds)
        for recipe, alpha in dict.fromkeys(named)
    ]


def measure(case: Case) -> Result:
    """Run a case, on one thread."""
    torch.set_num_threads(1)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = learn(
            RECIPES[case.recipe],
            alpha=case.alpha,
            seed=case.seed,
            steps=case.limit,
            folder=Path(folder),
        )
    spent = round(time.process_time() - started, 1)
    return Result(
        case.recipe, case.alpha, case.seed, case.key,
        found.steps, found.trained, found.success, found.best, spent,
    )  # fmt: skip


def measure_all(wanted: Sequence[Case], jobs: int) -> Iterator[Result]:
    """Results as they come, each run in a process with one thread."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(measure, case) for case in wanted]):
            result = done.result()
            print(f"  {_line(result)}", file=sys.stderr, flush=True)
            yield result


def _line(result: Result) -> str:
    reached = "not reached" if result.steps is None else f"{result.steps} steps"
    success = ", ".join(f"{name} {value:.2f}" for name, value in result.success.items())
    where = f"{result.recipe} at alpha {result.alpha}, seed {result.seed}"
    return f"{where}: {reached} ({success}; {result.cpu_s:.0f} s of a core)"


def run() -> list[Record]:
    """The stored table, and how long a few of its runs take today."""
    limit = _limit()
    there = read(STORED)
    everything = cases(list(RECIPES), (0, *ALPHAS), SEEDS, limit)
    known = [there[case.key] for case in everything if case.key in there]
    records = _compared(known, limit)
    for result in measure_all([Case(*setting, 0, limit) for setting in REPEATED], jobs=2):
        steps = limit + 1 if result.steps is None else result.steps
        name = f"learning: {result.recipe} at alpha {result.alpha}, seed 0, steps to the goal"
        stored = there.get(result.key)
        peer = "not stored" if stored is None else f"stored: {stored.steps}"
        records.append(record(name, steps, "steps", at_most=limit, peer=peer))
    return records


def _compared(known: Sequence[Result], limit: int) -> list[Record]:
    """Print the table of stored runs, and compare its recipes with on-policy GRPO."""
    settings = by_setting(known)
    if ("grpo", 0) not in settings:
        print(
            f"  learning: no run of on-policy GRPO in {STORED.name} has the settings of today's "
            "demo; run `python -m tests.benchmarks.bench_learning` to make the table again",
            file=sys.stderr,
        )
        return []
    Console(stderr=True).print(table(known, limit))
    return [
        record(
            f"learning: {recipe} at alpha {alpha}, steps of on-policy GRPO over its own",
            speed(settings[recipe, alpha], settings["grpo", 0]),
            "x",
            at_least=1 / ON_PAR,
            peer=f"{len(settings[recipe, alpha])} stored seeds",
        )
        for recipe, alpha in ON_PAR_FOR
        if (recipe, alpha) in settings
    ]


def read(path: Path) -> dict[str, Result]:
    """Results of a file of JSON lines, by the key of their case; empty if there is no file."""
    if not path.exists():
        return {}
    found = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return {result.key: result for result in found}


def main(arguments: Sequence[str]) -> int:
    """Run the missing runs of a part of the table, and print that part."""
    options = _parser().parse_args(arguments)
    wanted = cases(options.recipes, options.alphas, options.seeds, options.limit)
    there = read(options.out)
    with options.out.open("a") as lines:
        for result in measure_all([c for c in wanted if c.key not in there], options.jobs):
            there[result.key] = result
            print(json.dumps(asdict(result)), file=lines, flush=True)
    Console().print(table([there[case.key] for case in wanted], options.limit))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.bench_learning", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--recipes", type=_recipes, default=list(RECIPES), metavar="A,B")
    parser.add_argument("--alphas", type=_alphas, default=list(ALPHAS), metavar="A,B")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from 0 on")
    parser.add_argument("--limit", type=int, default=_limit(), help="most training steps of a run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, a thread each")
    parser.add_argument("--out", type=Path, default=STORED)
    return parser


def _limit() -> int:
    """As many steps as the demo has."""
    return demo(0).train.steps


def _recipes(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in RECIPES]:
        raise argparse.ArgumentTypeError(
            f"no recipe {unknown[0]!r}; there are {', '.join(RECIPES)}"
        )
    return names


def _alphas(text: str) -> list[int]:
    alphas = [int(number) for number in text.split(",")]
    if min(alphas) < 0:
        raise argparse.ArgumentTypeError(f"alpha {min(alphas)} is below 0")
    return alphas


def by_setting(results: Iterable[Result]) -> dict[tuple[str, int], list[Result]]:
    """Results of all seeds by (recipe, alpha), in order of their first."""
    found: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        found.setdefault((result.recipe, result.alpha), []).append(result)
    return found


def speed(results: Sequence[Result], on_policy: Sequence[Result]) -> float:
    """Steps of on-policy GRPO divided by those of the others, each the median over its seeds: 1 if
    they are on par, 0 if most seeds do not reach the goal."""
    steps = median(result.count for result in results)
    return 0.0 if math.isinf(steps) else median(r.count for r in on_policy) / max(steps, 1)


def table(results: Iterable[Result], limit: int) -> Table:
    """Medians over seeds, by recipe and alpha."""
    settings = by_setting(results)
    on_policy = settings["grpo", 0]
    found = Table(
        "recipe", "alpha", "steps", "on-policy over these", "reached", "best", "seeds",
        title=f"Steps to {GOAL:g} sampled success in both domains, at most {limit}; medians",
    )  # fmt: skip
    for (recipe, alpha), runs in settings.items():
        steps = median(run.count for run in runs)
        found.add_row(
            recipe,
            str(alpha),
            f"> {limit}" if math.isinf(steps) else f"{steps:g}",
            f"{speed(runs, on_policy):.2f}",
            f"{sum(run.steps is not None for run in runs)} of {len(runs)}",
            f"{median(run.best for run in runs):.2f}",
            " ".join("-" if run.steps is None else str(run.steps) for run in runs),
        )
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
