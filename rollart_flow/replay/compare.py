"""Comparison of a recorded trajectory with its replay; pure functions over replayed data.

The comparison goes turn by turn, in the order in which the parts of a turn are produced:
observation, observation tokens, action text, logprobs, environment reward, and end of the episode.
The final reward follows the last turn. Invariant: the reported divergence is the first one in this
order. Text, rewards, and episode ends must be equal; logprobs must agree within a tolerance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rollart_flow.replay.episode import Episode, answered
from rollart_flow.replay.logprobs import ScoredToken
from rollart_flow.replay.spoken import RecordedTurn, SpokenTurn, shown_text
from rollart_flow.types import TRAINABLE, Outcome, Reason, Trajectory

_SHOWN = 60
"""Maximum number of characters of a text that a message quotes."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A stored trajectory together with all of its recomputed values."""

    trajectory: Trajectory
    episode: Episode
    recorded: tuple[RecordedTurn, ...]
    """Observations and actions as the trajectory says."""
    spoken: tuple[SpokenTurn, ...]
    """Observations and actions as the trajectory's tokens say."""
    final: bool
    """Whether the trajectory has the last turn of its attempt, which no other branch follows."""
    max_turns: int
    """Number of turns after which an attempt in the trajectory's domain is truncated."""
    tokens: tuple[ScoredToken, ...]
    unscored: str | None
    """Reason why the tokens could not be scored again, or None if they were."""
    tolerance: float
    """Largest logprob difference that counts as rounding."""
    scored: Trajectory | None
    """The trajectory with its recomputed reward, or None if it never had a reward."""

    def last(self, turn: int) -> bool:
        """Whether a turn is the last one of the attempt."""
        return self.final and turn + 1 == len(self.trajectory.turns)

    def answered(self, turn: int) -> bool:
        """Whether the environment's answer to the action of a turn was recorded."""
        return not self.last(turn) or answered(self.trajectory, turn)

    def drawn(self, turn: int) -> list[ScoredToken]:
        recorded = self.trajectory.turns[turn]
        return [t for t in self.tokens if recorded.start <= t.position < recorded.end]


def first_divergence(replay: Replay) -> str | None:
    """Return the first divergence from the recording as one line, or None if there is none."""
    for turn in range(len(replay.trajectory.turns)):
        for check in _CHECKS:
            if (said := check(replay, turn)) is not None:
                return f"turn {turn}{said}"
    return _final(replay)


def turn_reports(replay: Replay) -> list[dict[str, Any]]:
    """Return one JSON-serializable report per turn; a value is None if it cannot be compared."""
    return [_report(replay, turn) for turn in range(len(replay.trajectory.turns))]


def _report(replay: Replay, turn: int) -> dict[str, Any]:
    recorded, episode = replay.trajectory.turns[turn], replay.episode
    shown, drawn = turn < len(episode.observations), replay.drawn(turn)
    return {
        "turn": turn,
        "observation_equal": shown and _observation(replay, turn) is None,
        "action_equal": _action(replay, turn) is None,
        "reward": recorded.reward if replay.answered(turn) else None,
        "replayed_reward": (episode.answers[turn].reward if turn < len(episode.answers) else None),
        "tokens": sum(replay.trajectory.action_mask[recorded.start : recorded.end]),
        "versions": sorted({token.version for token in drawn}),
        "logprob_gap_max": max((token.gap for token in drawn), default=None),
    }


def _observation(replay: Replay, turn: int) -> str | None:
    shown = replay.episode.observations
    if turn >= len(shown):
        return f": the environment failed: {replay.episode.error}"
    recorded = shown_text(replay.recorded[turn].observation)
    if shown[turn] == recorded:
        return None
    return f": observation {_short(recorded)} was recorded, {_short(shown[turn])} replayed"


def _observation_tokens(replay: Replay, turn: int) -> str | None:
    recorded, mask = replay.trajectory.turns[turn], replay.trajectory.action_mask
    places = range(recorded.start, recorded.end)
    stored = [(at, replay.trajectory.token_ids[at]) for at in places if not mask[at]]
    encoded = replay.spoken[turn].observation_ids
    for place, token in enumerate(encoded):
        if place >= len(stored) or stored[place] != (recorded.start + place, token):
            at = recorded.start + place
            return f", token {at}: differs from the token {token} of its encoded observation"
    if len(stored) > len(encoded):
        return f", token {stored[len(encoded)][0]}: is beyond its observation and not generated"
    return None


def _action(replay: Replay, turn: int) -> str | None:
    recorded, found = replay.recorded[turn].action, replay.spoken[turn].action
    if recorded is None or recorded == found:
        return None
    was, now = recorded.text, found.text
    if was == now:  # they differ in thinking or in tool calls
        was, now = (shown_text((each.as_message(),)) for each in (recorded, found))
    return f": action {_short(was)} was recorded, its tokens say {_short(now)}"


def _logprobs(replay: Replay, turn: int) -> str | None:
    if replay.unscored is not None:
        return f": logprobs cannot be compared: {replay.unscored}"
    return logprob_difference(replay.drawn(turn), replay.tolerance)


def logprob_difference(tokens: Sequence[ScoredToken], tolerance: float) -> str | None:
    """Return the first logprob that differs by more than rounding, as the end of a line."""
    for token in tokens:
        if not token.gap <= tolerance:
            return (
                f", token {token.position}: logprob {token.recorded:.6f} was recorded, "
                f"{token.recomputed:.6f} recomputed under version {token.version}"
            )
    return None


def _reward(replay: Replay, turn: int) -> str | None:
    if not replay.answered(turn):
        return None
    if turn >= len(replay.episode.answers):
        return f": the environment failed: {replay.episode.error}"
    recorded = replay.trajectory.turns[turn].reward
    replayed = replay.episode.answers[turn].reward
    if recorded == replayed:
        return None
    return f": reward {recorded!r} was recorded, {replayed!r} replayed"


def _end(replay: Replay, turn: int) -> str | None:
    trajectory = replay.trajectory
    last = replay.last(turn)
    if turn >= len(replay.episode.answers) or (last and trajectory.outcome not in TRAINABLE):
        return None
    answer = replay.episode.answers[turn]
    found = "terminated" if answer.terminated else "truncated" if answer.truncated else "went on"
    expected = {"went on"}
    if last and trajectory.outcome is Outcome.COMPLETED:
        expected = {"terminated"}
    elif last and trajectory.reason is Reason.TURN_LIMIT:
        expected = (
            {"truncated", "went on"}
            if replay.recorded[turn].number + 1 == replay.max_turns
            else {"truncated"}
        )
    if found in expected:
        return None
    return f": the episode {min(expected)} after it as recorded, and {found} when replayed"


_CHECKS: tuple[Callable[[Replay, int], str | None], ...] = (
    _observation,
    _observation_tokens,
    _action,
    _logprobs,
    _reward,
    _end,
)


def _final(replay: Replay) -> str | None:
    trajectory, scored = replay.trajectory, replay.scored
    if trajectory.solved != replay.episode.solved:
        return f"solved: {trajectory.solved} was recorded, {replay.episode.solved} replayed"
    return None if scored is None else reward_difference(trajectory, scored)


def reward_difference(trajectory: Trajectory, scored: Trajectory) -> str | None:
    """Return how a recorded reward differs from the one that was computed again, or None."""
    if scored.reward is None:
        return f"final reward: {trajectory.reward!r} was recorded, now: {scored.error}"
    for what, recorded, replayed in (
        ("reward", trajectory.reward, scored.reward),
        ("reward parts", trajectory.reward_parts, scored.reward_parts),
    ):
        if recorded != replayed:
            return f"final {what}: {recorded!r} was recorded, {replayed!r} recomputed"
    return None


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
