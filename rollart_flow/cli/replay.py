"""`rollart replay`: recompute a step, or re-run a trajectory, and compare with what was stored."""

from typing import TYPE_CHECKING, Annotated

import typer

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import console, print_json
from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    from rollart_flow.replay import StepReplay, TrajectoryReplay


def replay(
    run: RunName,
    step: Annotated[int | None, typer.Option(min=1, help="Training step to recompute.")] = None,
    trajectory: Annotated[
        str | None, typer.Option(help="Trajectory to re-run; the beginning of its id is enough.")
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a step or re-run a trajectory; exit code 1 if anything differs."""
    from rollart_flow.store import open_run

    if (step is None) == (trajectory is None):
        raise SettingsError("replay takes either --step N or --trajectory ID")
    stored = open_run(run, store=store)
    if step is not None:
        from rollart_flow.replay import replay_step

        equal = _show_step(replay_step(stored.uri, step), as_json)
    if trajectory is not None:
        from rollart_flow.cli.transcript import find_trajectory

        trajectory_id = find_trajectory(stored, trajectory)
        from rollart_flow.replay import replay_trajectory

        equal = _show_trajectory(replay_trajectory(stored.uri, trajectory_id), as_json)
    if not equal:
        raise typer.Exit(1)


def _show_step(replayed: "StepReplay", as_json: bool) -> bool:
    if as_json:
        print_json(
            {
                "step": replayed.step,
                "equal": replayed.equal,
                "recorded": replayed.recorded,
                "recomputed": replayed.recomputed,
                "difference": replayed.difference,
            }
        )
        return replayed.equal
    out = console()
    for name, recorded in replayed.recorded.items():
        recomputed = replayed.recomputed[name]
        mark = "=" if recorded == recomputed else "differs from"
        out.print(f"  {name:12} {recorded!r} {mark} {recomputed!r}", soft_wrap=True)
    if replayed.equal:
        out.print(f"step {replayed.step}: equal to the last bit")
    else:
        out.print(f"step {replayed.step}: differs: {replayed.difference}", soft_wrap=True)
    return replayed.equal


def _show_trajectory(replayed: "TrajectoryReplay", as_json: bool) -> bool:
    if as_json:
        print_json(
            {
                "trajectory_id": replayed.trajectory_id,
                "equal": replayed.equal,
                "divergence": replayed.divergence,
                "turns": replayed.turns,
            }
        )
    elif replayed.equal:
        turns = len(replayed.turns)
        console().print(f"trajectory {replayed.trajectory_id}: {turns} turns, all equal")
    else:
        said = f"trajectory {replayed.trajectory_id}: differs: {replayed.divergence}"
        console().print(said, soft_wrap=True)
    return replayed.equal
