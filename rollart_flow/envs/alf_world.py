"""Household tasks of ALFWorld: find a thing, clean, heat or cool it, and put it somewhere.

The rules, the wording and the goals are those that ALFWorld's package ships; the houses are made
from a number, since those of ALFRED have to be downloaded. The action is a command such as "take
apple 1 from fridge 1", the last line of a text that is possible.

Invariant: the number of a task and the settings decide the house, the goal and its wording.

Sources: ALFWorld, arXiv:2010.03768; ROLL Flash (ALFWorld).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from random import Random
from threading import Lock
from typing import Any, ClassVar, NamedTuple

from rollart_flow.envs.base import Environment, Info
from rollart_flow.envs.numbered import NumberedDomain
from rollart_flow.envs.optional import optional_module
from rollart_flow.errors import EnvironmentFailedError, MissingExtraError, SettingsError
from rollart_flow.types import Task
from rollart_flow.validation import check_count

_LONGEST = 6000
_PLACES = ("Cabinet", "CounterTop", "DiningTable", "Drawer", "GarbageCan", "Shelf")
_APPLIANCES = ("Fridge", "Microwave", "SinkBasin")
_OPENABLE = {"Cabinet", "Drawer", "Fridge", "Microwave"}
_EATEN = ("Apple", "Bread", "Egg", "Potato", "Tomato")
_USED = ("Bowl", "Cup", "Fork", "Knife", "Mug", "Plate", "Spoon")
_ABILITIES = {
    "cleanable": {*_USED, "Apple", "Potato", "Tomato"},
    "heatable": {*_EATEN, "Cup", "Mug", "Plate"},
    "coolable": {*_EATEN, "Bowl", "Cup", "Mug", "Plate"},
}
GOALS = {
    "pick_and_place_simple": "",
    "pick_clean_then_place_in_recep": "cleanable",
    "pick_heat_then_place_in_recep": "heatable",
    "pick_cool_then_place_in_recep": "coolable",
}
"""Goals of ALFWorld's library, and what a thing has to be able to do for it."""


_ONE_PARSER = Lock()
"""The package has one parser for all games of a process, which threads must not use together."""


class House(NamedTuple):
    """A house with a goal, as the planner reads it."""

    problem: str
    """The problem in PDDL."""
    goal: str
    """The goal in words."""


def house(number: int, goal: str, places: int, things: int) -> House:
    """Return the house of a number.

    Raises:
        MissingExtraError: alfworld is not installed.
    """
    random = Random(f"alfworld/{goal}/{places}/{things}/{number}")
    library = optional_module("alfworld.gen.goal_library", extra="alfworld").gdict[goal]
    rooms = [*_APPLIANCES, *random.choices(_PLACES, k=places)]
    kinds = sorted(_ABILITIES[GOALS[goal]]) if GOALS[goal] else [*_EATEN, *_USED]
    wanted = random.choice(kinds)
    target = random.choice([kind for kind in rooms if kind in _PLACES])
    held = [wanted, *random.choices([k for k in (*_EATEN, *_USED) if k != wanted], k=things - 1)]
    receptacles, objects = _named(rooms), _named(held)
    starts = [name for name, kind in receptacles.items() if kind != target]
    facts = ["(atLocation agent_1 loc_0)", "(= (total-cost) 0)"]
    for n, (name, kind) in enumerate(receptacles.items(), 1):
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} loc_{n})"]
        facts += [f"(openable {name})"] if kind in _OPENABLE else []
    for name, kind in objects.items():
        at = random.choice(starts)
        location = 1 + list(receptacles).index(at)
        facts += [f"(objectType {name} {kind}Type)", f"(pickupable {name})"]
        facts += [f"(inReceptacle {name} {at})", f"(objectAtLocation {name} loc_{location})"]
        facts += [f"({ability} {name})" for ability, able in _ABILITIES.items() if kind in able]
    objects_seen, places_seen = sorted({*held, "ButterKnife", "Knife"}), sorted({*rooms})
    facts += [f"(canContain {r}Type {o}Type)" for r in places_seen for o in objects_seen]
    declared = {
        "agent": ["agent_1"],
        "location": [f"loc_{n}" for n in range(len(rooms) + 1)],
        "receptacle": list(receptacles),
        "object": list(objects),
        "rtype": [f"{kind}Type" for kind in places_seen],
        "otype": [f"{kind}Type" for kind in objects_seen],
    }
    names = "\n".join(f"{' '.join(each)} - {kind}" for kind, each in declared.items())
    # The package writes "#" for "-" in its goals, and closes the problem with them.
    ends = library["pddl"].format(obj=wanted, recep=target).replace(" # ", " - ")
    start = "\n".join(facts)
    problem = f"(define (problem house)\n(:domain alfred)\n(:objects\n{names})\n(:init\n{start})\n"
    words = random.choice(library["templates"]).format(obj=wanted.lower(), recep=target.lower())
    return House(problem + ends, words)


def _named(kinds: Sequence[str]) -> dict[str, str]:
    """Return the kinds by name: the second cabinet is cabinet_2."""
    named: dict[str, str] = {}
    for kind in kinds:
        count = sum(other == kind for other in named.values())
        named[f"{kind.lower()}_{count + 1}"] = kind
    return named


class AlfWorldEnvironment(Environment):
    """A house of ALFWorld. `info["success"]`: whether the goal is reached;
    `info["invalid_actions"]`: commands that were not possible."""

    version = "alfworld/1"

    def __init__(self, settings: "AlfWorld") -> None:
        optional_module("alfworld.gen.goal_library", extra="alfworld")
        pddl = optional_module("textworld.envs.pddl.pddl", extra="alfworld")
        if pddl.fast_downward_missing:
            raise MissingExtraError(
                "ALFWorld needs fast_downward: pip install 'rollart-flow[alfworld]'"
            )
        core = optional_module("textworld.core", extra="alfworld")
        data = files("alfworld").joinpath("data")
        self._domain = data.joinpath("alfred.pddl").read_text("utf-8")
        self._grammar = data.joinpath("alfred.twl2").read_text("utf-8")
        self._game: Any = pddl.PddlEnv(core.EnvInfos(admissible_commands=True))
        self._planner: Any = pddl.PddlEnv(core.EnvInfos(policy_commands=True))
        self._settings = settings
        self._possible: list[str] = []
        self._turns = self._invalid = 0

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        """Build the house `{"number": 7, "goal": "...", "places": 8, "things": 8}`."""
        state = self._load(self._game, task)
        self._possible = list(state["admissible_commands"])
        self._turns = self._invalid = 0
        return self._shown(self._settings.instructions + str(state.feedback)), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Give one command. Truncated after `max_turns` turns, possible or not."""
        if not self._possible:
            raise EnvironmentFailedError("ALFWorld: step before reset; call reset first")
        self._turns += 1
        said = [line.strip().strip("`>.").strip().lower() for line in action.splitlines()]
        known = [line for line in said if line in self._possible]
        self._invalid += not known
        won, told = False, "Nothing happens."
        if known:
            with _ONE_PARSER:
                state, _, _ = self._game.step(known[-1])
            self._possible = list(state["admissible_commands"])
            won, told = bool(state["won"]), str(state.feedback)
        info = {"success": won, "invalid_actions": self._invalid}
        truncated = not won and self._turns >= self._settings.max_turns
        return self._shown(told), float(won), won, truncated, info

    def plan(self, task: str) -> list[str]:
        """Return commands with which the planner reaches the goal of a task."""
        return list(self._load(self._planner, task)["policy_commands"])

    def _load(self, game: Any, task: str) -> Any:
        made = house(**json.loads(task))
        grammar = self._grammar.replace("UNKNOWN GOAL", made.goal)
        files = {"pddl_domain": self._domain, "grammar": grammar, "pddl_problem": made.problem}
        with _ONE_PARSER:
            game.load(files)
            for info in game._entity_infos.values():
                info.name = info.id.replace("_", " ")
            return game.reset()

    def _shown(self, text: str) -> str:
        if self._settings.commands:
            text += f"\nPossible: {', '.join(self._possible)}."
        return text[:_LONGEST]


@dataclass(frozen=True)
class AlfWorld(NumberedDomain):
    """Reach goals in houses of ALFWorld; needs the extra `alfworld`, which takes minutes to build.

    Raises SettingsError if a goal is unknown, or a setting is out of range.
    """

    name: ClassVar[str] = "alfworld"
    environment: ClassVar[type[Environment]] = AlfWorldEnvironment

    goals: tuple[str, ...] = tuple(GOALS)
    """Goals that tasks have in turn, of `GOALS`."""
    places: int = 8
    """Places to put things, besides a fridge, a microwave and a sink."""
    things: int = 8
    """Things in the house."""
    commands: bool = False
    """List the possible commands in each observation."""
    max_turns: int = 30
    """Turns after which an episode is truncated."""
    instructions: str = ""
    """Put before the first observation; a pretrained policy needs to be told what to do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "goals", tuple(self.goals))
        if not self.goals or not {*self.goals} <= GOALS.keys():
            raise SettingsError(f"AlfWorld: goals is {self.goals!r}; take of {', '.join(GOALS)}")
        check_count("AlfWorld: places", self.places, low=2)
        check_count("AlfWorld: things", self.things, low=1)
        check_count("AlfWorld: max_turns", self.max_turns, low=8)

    def make(self) -> AlfWorldEnvironment:
        return AlfWorldEnvironment(self)

    def task(self, number: int) -> Task:
        """Return the house of a number."""
        goal = self.goals[number % len(self.goals)]
        payload = {"number": number, "goal": goal, "places": self.places, "things": self.things}
        return Task(f"{self.name}/{goal}/{number}", self.name, json.dumps(payload))

    def solutions(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Return the commands of the planner, and some that change nothing."""
        gold = self.make().plan(task.payload)
        return {"gold": gold, "noop": ["look"] * self.max_turns} if gold else {}

    def example_action(self, task: Task, random: Random) -> str:
        place = random.choice((*_PLACES, *_APPLIANCES)).lower()
        return random.choice(("look", "inventory", f"go to {place} 1", f"open {place} 1"))
