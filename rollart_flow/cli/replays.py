"""`rollart replay`: what a run has recorded is computed again, and compared."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import console, print_json
from rollart_flow.cli.trusting import Trust, check_trusted
from rollart_flow.errors import SettingsError
from rollart_flow.text import counted

if TYPE_CHECKING:
    from rollart_flow.replay import (
        CapturedReplay,
        ExchangesReplay,
        KeptLogprobs,
        SessionReplay,
        StepReplay,
        TrajectoryReplay,
    )
    from rollart_flow.store import Run


def replay(
    run: RunName,
    step: Annotated[int | None, typer.Option(min=1, help="Training step to recompute.")] = None,
    trajectory: Annotated[
        str | None, typer.Option(help="Trajectory to re-run; the beginning of its id is enough.")
    ] = None,
    exchanges: Annotated[
        bool, typer.Option("--exchanges", help="Replay all calls of captured agents.")
    ] = False,
    parser: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="With --exchanges: a format to parse answers in too."),
    ] = None,
    harness: Annotated[
        bool,
        typer.Option("--harness", help="With --trajectory: run an agent's program again."),
    ] = False,
    logprobs: Annotated[
        bool,
        typer.Option(
            "--logprobs",
            help="With --trajectory: compute logprobs alone, and keep them for the ui.",
        ),
    ] = False,
    trust: Trust = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a step, re-run a trajectory, or replay agents' calls; exit code 1 if any differs.

    The calls of a captured agent are rendered and parsed again, without an engine, and scored again
    with its reward. With --harness its program runs again in a box, and gets what was sampled then.
    With --logprobs only the logprobs are computed again, and kept in the run's folder.
    """
    from rollart_flow.store import open_run

    if [step is not None, trajectory is not None, exchanges].count(True) != 1:
        raise SettingsError("replay takes one of --step N, --trajectory ID and --exchanges")
    if parser is not None and not exchanges:
        raise SettingsError("--parser is tried on all calls of a run; add --exchanges")
    if harness and trajectory is None:
        raise SettingsError("--harness runs the program of one attempt; add --trajectory ID")
    if logprobs and (trajectory is None or harness):
        raise SettingsError("--logprobs goes with --trajectory ID, and without --harness")
    stored = open_run(run, store=store)
    if exchanges:
        from rollart_flow.replay import replay_exchanges

        equal = _show_exchanges(replay_exchanges(stored.uri, parser), as_json)
    elif trajectory is not None and logprobs:
        equal = _logprobs(stored, trajectory, trust, as_json)
    elif trajectory is not None:
        equal = _trajectory(stored, trajectory, harness, trust, as_json)
    else:
        assert step is not None
        equal = _step(stored, step, trust, as_json)
    if not equal:
        raise typer.Exit(1)


def _step(stored: "Run", step: int, trust: bool, as_json: bool) -> bool:
    check_trusted(stored.uri, trust)
    from rollart_flow.replay import replay_step

    return _show_step(replay_step(stored.uri, step), as_json)


def _trajectory(stored: "Run", beginning: str, harness: bool, trust: bool, as_json: bool) -> bool:
    """Replay a trajectory: a captured agent's program or calls, or else the environment."""
    from rollart_flow.cli.transcript import find_trajectory, is_captured

    trajectory_id = find_trajectory(stored, beginning)
    if harness:
        check_trusted(stored.uri, trust)
        from rollart_flow.replay.program import replay_program

        return _show_calls(replay_program(stored.uri, trajectory_id), as_json)
    check_trusted(stored.uri, trust)
    if is_captured(stored, trajectory_id):
        from rollart_flow.replay import replay_captured

        return _show_captured(replay_captured(stored.uri, trajectory_id), as_json)
    from rollart_flow.replay import replay_trajectory

    return _show_trajectory(replay_trajectory(stored.uri, trajectory_id), as_json)


def _logprobs(stored: "Run", beginning: str, trust: bool, as_json: bool) -> bool:
    """Compute the logprobs of a trajectory again, and keep them."""
    from rollart_flow.cli.transcript import find_trajectory

    trajectory_id = find_trajectory(stored, beginning)
    check_trusted(stored.uri, trust)
    from rollart_flow.replay import keep_logprobs

    return _show_kept(keep_logprobs(stored.uri, trajectory_id), as_json)


def _show_kept(kept: "KeptLogprobs", as_json: bool) -> bool:
    equal = kept.divergence is None
    if as_json:
        print_json({"equal": equal, **asdict(kept)})
        return equal
    said = f"differs: {kept.divergence}"
    if equal:
        said = f"{counted(kept.tokens, 'token')}, largest difference {kept.gap_max:.2g} nats"
    if kept.step is not None:
        said += f"; ratio at step {kept.step}: mean {kept.ratio_mean:.4f}, max {kept.ratio_max:.4f}"
    console().print(f"trajectory {kept.trajectory_id}: {said}", soft_wrap=True)
    console().print(f"kept in {kept.uri}", soft_wrap=True)
    return equal


def _show_step(replayed: "StepReplay", as_json: bool) -> bool:
    if as_json:
        names = ("step", "equal", "recorded", "recomputed", "difference")
        print_json({name: getattr(replayed, name) for name in names})
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
        names = ("trajectory_id", "equal", "divergence", "turns")
        print_json({name: getattr(replayed, name) for name in names})
    elif replayed.equal:
        turns = counted(len(replayed.turns), "turn")
        console().print(f"trajectory {replayed.trajectory_id}: {turns}, all equal")
    else:
        said = f"trajectory {replayed.trajectory_id}: differs: {replayed.divergence}"
        console().print(said, soft_wrap=True)
    return replayed.equal


def _show_captured(replayed: "CapturedReplay", as_json: bool) -> bool:
    scored = replayed.scored_tokens
    if as_json:
        form = _calls_json(replayed.calls, replayed.divergence)
        print_json({**form, "scored_tokens": scored})
        return replayed.divergence is None
    said = (
        "not scored, since the run has no pipeline" if scored is None else counted(scored, "token")
    )
    return _say_calls(replayed.calls, replayed.divergence, f", {said}")


def _show_calls(replayed: "SessionReplay", as_json: bool) -> bool:
    divergence = None if replayed.difference is None else str(replayed.difference)
    if not as_json:
        return _say_calls(replayed, divergence)
    print_json(_calls_json(replayed, divergence))
    return divergence is None


def _calls_json(replayed: "SessionReplay", divergence: str | None) -> dict[str, Any]:
    return {
        "trajectory_id": replayed.trajectory_id, "equal": divergence is None,
        "divergence": divergence, "calls": replayed.calls, "replayed": replayed.replayed,
    }  # fmt: skip


def _say_calls(replayed: "SessionReplay", divergence: str | None, scored: str = "") -> bool:
    """Print the result in one line; return whether all is equal."""
    equal = f"{counted(replayed.calls, 'call')}{scored}, all equal"
    said = equal if divergence is None else f"differs: {divergence}"
    console().print(f"trajectory {replayed.trajectory_id}: {said}", soft_wrap=True)
    return divergence is None


def _show_exchanges(replayed: "ExchangesReplay", as_json: bool) -> bool:
    if as_json:
        names = ("parser", "attempts", "calls", "differing", "equal", "first")
        print_json({name: getattr(replayed, name) for name in names})
        return replayed.equal
    out = console()
    for each in replayed.first:
        said = f"{each['trajectory_id']}: call {each['call']}: {each['what']}: {each['said']}"
        out.print(said, soft_wrap=True)
    said = "all equal" if replayed.equal else f"{replayed.differing} differ"
    compared = f"{counted(replayed.calls, 'call')} of {counted(replayed.attempts, 'attempt')}"
    out.print(f"{compared}, parser {replayed.parser}: {said}")
    return replayed.equal
