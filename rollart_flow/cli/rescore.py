"""`rollart rescore`: another verifier or reward judges the stored attempts of a run."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import Interrupted, console, grid, print_json
from rollart_flow.cli.trusting import Trust, check_trusted
from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    from rollart_flow.checking.rescoring import Rescored, RescoreSettings
    from rollart_flow.envs.base import Domain
    from rollart_flow.pipeline import Pipeline
    from rollart_flow.store import Run

_SHOWN = 20
"""Number of attempts that a table for people has at most."""


_Domain: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="Judge the attempts of this domain only.")
]
_Verifier: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Pipeline file whose domains judge; that of the run by default."
    ),
]
_Reward: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:FUNCTION", help="Score trajectories by a reward function instead."
    ),
]
_Where: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="EXPR",
        help="Only attempts that a filter keeps, such as varied or 'reward > 0'.",
    ),
]
_Environ: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="An environment variable that the function needs; may be repeated."),
]
_Name: TypeAlias = Annotated[
    str | None, typer.Option(help="Name of the rescoring; an unfinished one of this name goes on.")
]
_Workers: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Verifiers at a time; one for each core.")
]
_Timeout: TypeAlias = Annotated[
    float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Limit of a judgement.")
]


def rescore(
    run: RunName,
    domain: _Domain = None,
    verifier: _Verifier = None,
    reward: _Reward = None,
    where: _Where = None,
    environ: _Environ = None,
    name: _Name = None,
    workers: _Workers = None,
    timeout_s: _Timeout = 600.0,
    trust: Trust = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Judge stored diffs, or score trajectories, again; exit code 1 if one could not be judged."""
    if reward is not None:
        if verifier is not None:
            raise SettingsError("--verifier judges diffs, --reward scores trajectories; give one")
        from rollart_flow.cli.rescore_rewards import RewardOptions, rescore_rewards

        options = RewardOptions(reward, name, domain, where, environ or (), timeout_s, workers)
        rescore_rewards(run, options, store, as_json=as_json)
        return
    if where is not None or environ:
        raise SettingsError("--filter and --environ go with --reward FILE.py:FUNCTION")
    from rollart_flow.store import open_run

    opened = open_run(run, store=store)
    if verifier is None:
        check_trusted(opened.uri, trust)
    settings = _settings(opened, verifier, domain, name, timeout_s, workers)
    found = _rescored(opened, settings)
    if as_json:
        print_json(_as_object(opened, settings.name, found))
    else:
        _show(settings.name, found)
    if any(each.error for each in found):
        raise typer.Exit(1)


def _settings(
    run: "Run",
    verifier: str | None,
    domain: str | None,
    name: str | None,
    timeout_s: float,
    workers: int | None,
) -> "RescoreSettings":
    """Return the settings of a rescoring by the verifiers of a pipeline's domains."""
    from rollart_flow.checking.rescoring import (
        RescoreSettings,
        check_rescore_name,
        free_rescore_name,
    )

    pipeline, source = _pipeline(run, verifier)
    name = free_rescore_name(run) if name is None else name
    check_rescore_name(name)
    return RescoreSettings(
        domains=_domains(pipeline, domain),
        name=name,
        timeout_s=timeout_s,
        workers=workers or os.cpu_count() or 1,
        source=source,
    )


def _pipeline(run: "Run", verifier: str | None) -> "tuple[Pipeline, Path]":
    """Return the pipeline whose domains judge, and its file."""
    if verifier is not None:
        from rollart_flow.pipeline.loading import pipeline_in, read_source

        return pipeline_in(read_source(verifier, "pipeline"), verifier), Path(verifier)
    from rollart_flow.runner.retrain import stored_pipeline
    from rollart_flow.store.cache import local_file
    from rollart_flow.store.layout import pipeline_uri

    return stored_pipeline(run), local_file(pipeline_uri(run.uri))


def _domains(pipeline: "Pipeline", only: str | None) -> "tuple[Domain, ...]":
    """Return the domains that judge: those with a verifier, or the one that is asked for."""
    from rollart_flow.envs.base import Domain

    evaluated = () if pipeline.evaluate is None else pipeline.evaluate.domains
    every = {domain.name: domain for domain in (*evaluated, *pipeline.task_domains)}
    able = {n: each for n, each in every.items() if type(each).judge is not Domain.judge}
    if only is not None and only not in every:
        raise SettingsError(f"no domain {only!r}; there are {', '.join(sorted(every))}")
    chosen = {n: each for n, each in able.items() if only in (None, n)}
    if not chosen:
        raise SettingsError(
            f"domain {only or ', '.join(sorted(every))} keeps no verifier; `Domain.judge` is one"
        )
    return tuple(chosen.values())


def _rescored(run: "Run", settings: "RescoreSettings") -> "list[Rescored]":
    from rollart_flow.checking.rescoring import rescore as judged_again

    found: list[Rescored] = []

    async def judge() -> None:
        async for each in judged_again(run, settings):
            found.append(each)

    try:
        asyncio.run(judge())
    except KeyboardInterrupt:
        said = f"interrupted; {len(found)} attempts are judged; --name {settings.name} goes on"
        raise Interrupted(said) from None
    return found


def _as_object(run: "Run", name: str, found: "list[Rescored]") -> dict[str, Any]:
    told = [each for each in found if each.changed or each.error]
    return {
        "run": run.info.name,
        "source": name,
        "judged": sum(each.error is None for each in found),
        "changed": sum(each.changed for each in found),
        "failed": sum(each.error is not None for each in found),
        "trajectories": [
            {
                "trajectory_id": each.trajectory_id,
                "task_id": each.task_id,
                "domain": each.domain,
                "before": each.solved[0],
                "after": each.solved[1],
                "verdicts": [
                    {"key": key, "before": before, "after": after}
                    for key, (before, after) in each.verdicts.items()
                ],
                "error": each.error,
            }
            for each in told
        ],
    }


def _show(name: str, found: "list[Rescored]") -> None:
    out = console()
    told = [each for each in found if each.changed or each.error]
    headings = ("trajectory", "task", "solved", "now", "verdicts that changed")
    if told:
        out.print(grid(headings, map(_cells, told[:_SHOWN])))
    if len(told) > _SHOWN:
        out.print(f"and {len(told) - _SHOWN} more, all in --json", style="dim")
    failed = sum(each.error is not None for each in found)
    changed = sum(each.changed for each in found)
    also = f"; {failed} could not be judged" if failed else ""
    out.print(f"{changed} of {len(found) - failed} verdicts changed under {name!r}{also}")


def _cells(each: "Rescored") -> list[str]:
    before, after = map(_word, each.solved)
    changes = [f"{key}: {_word(a)} -> {_word(b)}" for key, (a, b) in each.verdicts.items()]
    said = each.error or ", ".join(changes[:3]) + (", ..." if len(changes) > 3 else "")
    return [each.trajectory_id, each.task_id, before, after, said]


def _word(passed: bool | None) -> str:
    return "-" if passed is None else "yes" if passed else "no"
