"""Text adventures of TextWorld, made from a seed: rooms, doors, keys, containers and a quest.

TextWorld makes the world, the quest and its wording, and keeps the rules. The observation is
written here from the facts of the world, without TextWorld's compiler for Inform 7: a game takes
some 50 ms instead of ten seconds, and a step under a millisecond. An action is a command such as
"open locker", the last line of a text that is one.

Invariant: the number of a task and the settings decide the world and its wording.

Source: https://github.com/microsoft/TextWorld
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import Any, ClassVar

from rollart_flow.envs.base import Environment, Info
from rollart_flow.envs.numbered import NumberedDomain
from rollart_flow.envs.optional import optional_module
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.types import Task
from rollart_flow.validation import check_count

_LONGEST = 6000
_DIRECTIONS = ("north", "east", "south", "west")
_ONE_PARSER = Lock()
"""TextWorld parses with one parser for the whole process, which threads must not share."""
_STATES = ("open", "closed", "locked")
_EXAMPLES = ("look", "inventory", "go north", "go east", "go south", "go west")


class AdventureWorld:
    """A game of TextWorld that is played without a compiled file.

    Raises:
        MissingExtraError: textworld is not installed.
        EnvironmentFailedError: no quest of this length fits into the world.
    """

    def __init__(self, number: int, rooms: int, objects: int, quest_length: int) -> None:
        generator = optional_module("textworld.generator", extra="textworld")
        game = optional_module("textworld.generator.game", extra="textworld")
        options = game.GameOptions()
        options.kb = generator.KnowledgeBase.default()  # its own would be parsed again, in seconds
        options.nb_rooms, options.nb_objects = rooms, objects
        options.quest_length, options.seeds = quest_length, number
        try:
            self._game: Any = generator.make_game(options)
        except generator.QuestGenerationError as error:
            raise EnvironmentFailedError(f"TextWorld: game {number}: {error}") from error
        self._progress: Any = game.GameProgression(self._game, track_quests=True)
        self._inform: Any = generator.inform7.Inform7Game(self._game)

    @property
    def objective(self) -> str:
        return str(self._game.objective)

    @property
    def walkthrough(self) -> list[str]:
        """Commands that complete the quest from the start."""
        return list(self._game.metadata["walkthrough"])

    @property
    def won(self) -> bool:
        return bool(self._progress.completed)

    @property
    def lost(self) -> bool:
        return bool(self._progress.failed)

    def commands(self) -> dict[str, Any]:
        """Return the actions that are possible now, by their commands."""
        actions = list(self._progress.valid_actions)
        return dict(zip(self._inform.gen_commands_from_actions(actions), actions, strict=True))

    def act(self, action: Any) -> None:
        """Apply a possible action."""
        self._progress.update(action)

    def described(self) -> str:
        """Return what the player sees: the room, what is in it, the exits and what is carried."""
        facts = [(f.name, *(v.name for v in f.arguments)) for f in self._progress.state.facts]
        (room,) = (place for name, *(who, place) in _pairs(facts, "at") if who == "P")
        here = sorted(who for _, who, place in _pairs(facts, "at") if place == room and who != "P")
        carried = sorted(who for _, who, place in _pairs(facts, "in") if place == "I")
        lines = [f"You are in the {self._name(room)}."]
        lines += [f"You see {self._with_state(each, facts)}." for each in here]
        for name in ("in", "on"):
            for each in here:
                held = sorted(who for _, who, at in _pairs(facts, name) if at == each)
                if held and ("closed", each) not in facts and ("locked", each) not in facts:
                    things = ", ".join(map(self._name, held))
                    lines.append(f"{name.title()} the {self._name(each)}: {things}.")
        lines += [f"Exit {direction}{door}." for direction, door in self._exits(room, facts)]
        lines.append(f"You carry {', '.join(map(self._name, carried)) or 'nothing'}.")
        return "\n".join(lines)

    def _exits(self, room: str, facts: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, str]]:
        for direction in _DIRECTIONS:
            for _, beyond, start in _pairs(facts, f"{direction}_of"):
                doors = [f[2] for f in facts if f[0] == "link" and f[1::2] == (room, beyond)]
                if start == room:
                    door = f" through {self._with_state(doors[0], facts)}" if doors else ""
                    yield direction, door

    def _name(self, thing: str) -> str:
        return str(self._game.infos[thing].name)

    def _with_state(self, thing: str, facts: Sequence[tuple[str, ...]]) -> str:
        states = [state for state in _STATES if (state, thing) in facts]
        return f"{self._name(thing)}{f' ({states[0]})' if states else ''}"


def _pairs(facts: Sequence[tuple[str, ...]], name: str) -> list[tuple[str, str, str]]:
    """Return the facts of a name that hold for two things."""
    return [(f[0], f[1], f[2]) for f in facts if f[0] == name and len(f) == 3]


class TextWorldEnvironment(Environment):
    """A game of TextWorld. `info["success"]`: whether the quest is completed;
    `info["invalid_actions"]`: commands that were not possible."""

    version = "textworld/1"

    def __init__(self, settings: "TextWorld") -> None:
        optional_module("textworld.generator", extra="textworld")  # seconds, before the first reset
        self._settings = settings
        self._world: AdventureWorld | None = None
        self._turns = self._invalid = 0

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        """Begin the game of a task, as `_begun` says."""
        with _ONE_PARSER:
            return self._begun(task)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Give one command. Truncated after `max_turns` turns, possible or not."""
        with _ONE_PARSER:
            return self._given(action)

    def _begun(self, task: str) -> tuple[str, Info]:
        """Make the game `{"number": 7, "rooms": 3, "objects": 6, "quest_length": 3}`."""
        self._world = AdventureWorld(**json.loads(task))
        self._turns = self._invalid = 0
        shown = self._settings.instructions + f"{self._world.objective}\n\n"
        return (shown + self._shown(self._world))[:_LONGEST], {}

    def _given(self, action: str) -> tuple[str, float, bool, bool, Info]:
        world = self._world
        if world is None:
            raise EnvironmentFailedError("TextWorld: step before reset; call reset first")
        self._turns += 1
        possible = {command.lower(): act for command, act in world.commands().items()}
        said = [line.strip().strip("`>.").strip().lower() for line in action.splitlines()]
        known = [line for line in said if line in possible]
        if known:
            world.act(possible[known[-1]])
        else:
            self._invalid += 1
        ended = world.won or world.lost
        shown = self._shown(world) if known else f"That is not possible.\n{self._shown(world)}"
        reward = float(world.won) if known else self._settings.invalid_reward
        info = {"success": world.won, "invalid_actions": self._invalid}
        truncated = not ended and self._turns >= self._settings.max_turns
        return shown[:_LONGEST], reward, ended, truncated, info

    def _shown(self, world: AdventureWorld) -> str:
        text = world.described()
        if self._settings.commands:
            text += f"\nPossible: {', '.join(sorted(world.commands()))}."
        return text


@dataclass(frozen=True)
class TextWorld(NumberedDomain):
    """Complete quests in worlds of TextWorld; needs the extra `textworld`.

    Raises SettingsError if a setting is out of range. A quest that is too long for the world fails
    the reset.
    """

    name: ClassVar[str] = "textworld"
    environment: ClassVar[type[Environment]] = TextWorldEnvironment

    rooms: int = 3
    """Number of rooms."""
    objects: int = 6
    """Number of things in them."""
    quest_length: int = 3
    """Commands that the quest takes."""
    commands: bool = True
    """List the possible commands in each observation."""
    invalid_reward: float = 0.0
    """Reward of a command that is not possible."""
    max_turns: int = 15
    """Turns after which an episode is truncated; at least `quest_length`."""
    instructions: str = ""
    """Put before the objective; a pretrained policy needs to be told what to do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("rooms", "objects", "quest_length"):
            check_count(f"TextWorld: {setting}", getattr(self, setting), low=1)
        check_count("TextWorld: max_turns", self.max_turns, low=self.quest_length)

    def make(self) -> TextWorldEnvironment:
        return TextWorldEnvironment(self)

    def task(self, number: int) -> Task:
        """Return the game of a number."""
        size = {"rooms": self.rooms, "objects": self.objects, "quest_length": self.quest_length}
        task_id = f"{self.name}/{'-'.join(map(str, size.values()))}/{number}"
        return Task(task_id, self.name, json.dumps({"number": number, **size}))

    def solutions(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Return TextWorld's walkthrough, and commands that change nothing."""
        with _ONE_PARSER:
            world = AdventureWorld(**json.loads(task.payload))
        return {"gold": world.walkthrough, "noop": ["wait"] * self.max_turns}

    def example_action(self, task: Task, random: Random) -> str:
        return random.choice(_EXAMPLES)
