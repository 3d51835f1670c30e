"""Rendering of one trajectory: per turn the observation, the action and every generated token."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollart_flow.cli.captured import calls_shown, read_calls
from rollart_flow.cli.output import grid
from rollart_flow.errors import SettingsError
from rollart_flow.text import counted
from rollart_flow.types.messages import message_from_json

if TYPE_CHECKING:
    import polars as pl

    from rollart_flow.analysis.spelling import Spell
    from rollart_flow.store import Run, Snapshot

_MOST_CANDIDATES = 5


def find_trajectory(run: "Run", beginning: str) -> str:
    """Return the id of the trajectory whose id begins with `beginning`.

    Raises:
        SettingsError: no id begins so, or several do.
    """
    return find_among(own_ids(run, beginning), beginning, run)


def own_ids(run: "Run", beginning: str) -> list[str]:
    """Return some ids of trajectories of a run that begin alike.

    The branches of one episode begin alike; the first of them is meant.
    """
    import polars as pl

    ids, first = pl.col("trajectory_id"), pl.col("branch").fill_null(0).alias("branch")
    fitting = run.trajectories.filter(ids.str.starts_with(beginning)).select(
        ids, first, "episode_id"
    )
    by_episode = fitting.sort("branch", "trajectory_id").unique("episode_id", keep="first")
    chosen = pl.concat([fitting.filter(ids == beginning), by_episode]).select(ids.unique().sort())
    return [str(each) for each in chosen.head(_MOST_CANDIDATES + 1).collect()["trajectory_id"]]


def find_among(found: Sequence[str], beginning: str, run: "Run") -> str:
    """Return the id that a beginning names: itself, or the only one found.

    Raises:
        SettingsError: there is none, or several are.
    """
    if beginning in found or len(found) == 1:
        return beginning if beginning in found else found[0]
    if not found:
        raise SettingsError(f"no trajectory {beginning!r} in {run.uri}; `rollart query` lists them")
    more = ", ..." if len(found) > _MOST_CANDIDATES else ""
    names = ", ".join(found[:_MOST_CANDIDATES])
    raise SettingsError(f"trajectory {beginning!r} is not unique: {names}{more}")


def is_captured(run: "Run", trajectory_id: str) -> bool:
    """Return whether a trajectory is one of a captured agent, which has calls."""
    import polars as pl

    rows = run.trajectories.filter(pl.col("trajectory_id") == trajectory_id).select("episode_id")
    return not run.exchanges.join(rows, on="episode_id", how="semi").head(1).collect().is_empty()


def read_trajectory(run: "Run", trajectory_id: str) -> dict[str, Any]:
    """Return the row of `trajectories`, with `steps`: the training steps that used it.

    The row of an episode of several branches also has `branches`, all of them in order; that of a
    captured agent has `calls` and `account`, its sampled tokens and what became of them.
    """
    import polars as pl

    tables = run.snapshot()
    mine = pl.col("trajectory_id") == trajectory_id
    row = tables.trajectories.filter(mine).collect().row(0, named=True)
    lag = pl.col("trained_version") - pl.col("policy_version") + pl.col("staleness")
    trained = tables.batches.filter(mine).sort("step")
    steps = trained.select("step", "staleness", lag=lag).collect().to_dicts()
    episode_id = row["episode_id"]
    more = {**_branches(tables, episode_id), **read_calls(tables, episode_id)}
    return {**row, "steps": steps, **more}


def _branches(tables: "Snapshot", episode_id: str) -> dict[str, Any]:
    """Return the branches of an episode, or nothing if it has one only."""
    import polars as pl

    rows = tables.trajectories.filter(pl.col("episode_id") == episode_id).select(
        "trajectory_id", "branch", "parent", "shared_tokens", "reason",
        tokens=pl.col("token_ids").list.len(), generated=_sampled(),
        turns=pl.col("turns").list.len(),
    )  # fmt: skip
    found = rows.unique("trajectory_id", keep="first").sort("branch").collect().to_dicts()
    return {"branches": found} if len(found) > 1 else {}


def _sampled() -> "pl.Expr":
    """Return the expression of a row's sampled tokens, whether they are trained on or not."""
    import polars as pl

    versions = pl.col("token_versions").list
    return versions.len() - versions.count_matches(-1)


def render_trajectory(row: Mapping[str, Any], spell: "Spell") -> RenderableType:
    parts: list[RenderableType] = [_head(row)]
    if branches := row.get("branches"):
        parts += ["", _branch_table(branches)]
    parts += calls_shown(row)
    others, own = _by_turn(row)
    if others:
        seen = "turns of other branches, which the policy saw before"
        parts += ["", Text(seen, style="bold"), *map(_conversation, others.values())]
    for index, turn in enumerate(row["turns"]):
        number, said = index, _said(turn)
        if own:
            number, messages = own[index]
            said = _conversation(messages)
        parts += ["", _turn_line(number + 1, turn), said, _tokens(row, turn, spell)]
    return Group(*parts)


def _branch_table(branches: Sequence[Mapping[str, Any]]) -> Table:
    headings = (
        "branch",
        "trajectory",
        "parent",
        "tokens",
        "shared",
        "generated",
        "turns",
        "reason",
    )
    table = grid(headings, right="branch tokens shared generated turns")
    table.title, table.title_justify = f"{len(branches)} branches of the episode", "left"
    depths: dict[str, int] = {}
    for each in branches:
        counts = (each[name] for name in ("tokens", "shared_tokens", "generated", "turns"))
        depths[each["trajectory_id"]] = depth = depths.get(each["parent"], -1) + 1
        name = "  " * depth + each["trajectory_id"]
        names = (str(each["branch"]), name, each["parent"] or "-")
        table.add_row(*names, *map(str, counts), each["reason"] or "-")
    return table


Messages = Sequence[Mapping[str, Any]]


def _by_turn(row: Mapping[str, Any]) -> tuple[dict[int, Messages], list[tuple[int, Messages]]]:
    """Return the messages of other branches by turn, and those of each own turn with its number.

    Both are empty for a trajectory without messages.
    """
    by_turn: dict[int, list[Mapping[str, Any]]] = {}
    for message in json.loads(row.get("messages") or "[]"):
        by_turn.setdefault(message["turn"], []).append(message)
    turns: list[tuple[int, Messages]] = [*by_turn.items()]
    others = max(len(turns) - len(row["turns"]), 0)
    return dict(turns[:others]), turns[others:]


def _conversation(messages: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for message in messages:
        role, said = message["role"], message["content"]
        style = "green" if role == "assistant" else "cyan"
        if thinking := message.get("reasoning_content"):
            table.add_row("  thinking", Text(thinking, style="dim"))
        if said or not message.get("tool_calls"):
            name = message.get("name")
            said = said if isinstance(said, str) else message_from_json(message).shown
            table.add_row(f"  {role}{f' {name}' if name else ''}", Text(said, style=style))
        for call in message.get("tool_calls", ()):
            table.add_row("  call", Text(_call(call), style="red" if "error" in call else style))
    return table


def _call(call: Mapping[str, Any]) -> str:
    if error := call.get("error"):
        return f"{call['text'] or call['function']['name']}: {error}"
    given = call["function"]["arguments"]
    arguments = ", ".join(f"{key}={json.dumps(value)}" for key, value in given.items())
    return f"{call['function']['name']}({arguments})"


def _head(row: Mapping[str, Any]) -> Text:
    text = Text.assemble((row["trajectory_id"], "bold"), f"  {row['domain']}, {row['outcome']}")
    if row["reason"]:
        text.append(f" ({row['reason']})")
    if row["error"]:
        text.append(f"\n{row['error']}", style="red")
    solved = {True: ", solved", False: ", not solved", None: ""}[row["solved"]]
    reward = "not scored" if row["reward"] is None else f"reward {row['reward']:g}"
    parts = ", ".join(f"{part['name']} {part['value']:g}" for part in row["reward_parts"] or ())
    text.append(f"\n{reward}{f' ({parts})' if parts else ''}{solved}")
    text.append(
        f"\ntask {row['task_id']}, group {row['group_id']}, attempt {row['attempt']}, "
        f"seed {row['env_seed']}, {row['env_version']}, {row['split']}"
    )
    versions = f"{row['policy_version_start']} to {row['policy_version_end']}"
    lived = (row["finished_at"] - row["created_at"]).total_seconds()
    tokens = counted(len(row["token_ids"]), "token")
    text.append(
        f"\npolicy versions {versions}, {tokens} in {lived:.3f} s, "
        f"reset {row['reset_s']:.3f} s, temperature {row['sampling']['temperature']:g}"
    )
    if row.get("tool_calls"):
        text.append(
            f"\n{counted(row['tool_calls'], 'tool call')}, {row['tool_errors']} could not be made"
        )
    if source := row.get("source"):
        text.append(f"\ndrawn from {source['run']}, seq {source['seq']}")
        text.append(f" of its table at version {source['version']}")
    for trained in row["steps"]:
        ages = f"staleness {trained['staleness']}, lag {trained['lag']}"
        ages = "exempt from the bound" if trained["lag"] is None else ages
        text.append(f"\ntrained on in step {trained['step']}, {ages}")
        if rescored := trained.get("rescored"):
            text.append(f", with the reward of the rescoring {rescored}")
    return text


def _turn_line(index: int, turn: Mapping[str, Any]) -> Text:
    where = "/".join(part for part in (turn["hardware"], turn["worker"]) if part)
    return Text.assemble(
        (f"turn {index}", "bold"),
        f"  reward {turn['reward']:g}, generated in {turn['generate_s']:.3f} s on {where}, "
        f"step {turn['step_s']:.3f} s, {turn['finish_reason']}",
    )


def _said(turn: Mapping[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_row("  observation", Text(turn["observation"], style="cyan"))
    table.add_row("  action", Text(turn["action"], style="green"))
    return table


def _tokens(row: Mapping[str, Any], turn: Mapping[str, Any], spell: "Spell") -> Table:
    """The generated tokens of a turn, and the number of its observation tokens."""
    positions = range(turn["start"], turn["end"])
    generated = [at for at in positions if row["token_versions"][at] >= 0]
    seen = len(positions) - len(generated)
    headings = ("position", "token", "text", "logprob", "version")
    table = grid(headings, right="position token logprob version")
    table.title = f"{seen} observation tokens, {len(generated)} generated"
    if generated and not row["action_mask"][generated[0]]:
        table.title += ", not trained on"
    table.title_justify = "left"
    for at in generated:
        token, version = row["token_ids"][at], row["token_versions"][at]
        text = Text(repr(spell(token)))
        table.add_row(str(at), str(token), text, f"{row['logprobs'][at]:.4f}", str(version))
    return table
