"""`rollart completion SHELL`: a script that lets a shell complete commands, options and runs.

The scripts ask this program with `_ROLLART_COMPLETE` in the environment, in Typer's protocol. Names
of runs are read from the folders of a store, without the libraries that read tables.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from rollart_flow.validation import check_choice

_BASH = r"""_rollart_completion() {
    local IFS=$'\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
                   _ROLLART_COMPLETE=complete_bash "$1" ) )
}
complete -o default -F _rollart_completion rollart
"""
_ZSH = r"""#compdef rollart
_rollart_completion() {
  eval "$(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _ROLLART_COMPLETE=complete_zsh rollart)"
}
compdef _rollart_completion rollart
"""
_FISH_ASK = (
    "env _ROLLART_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION={} "
    "_TYPER_COMPLETE_ARGS=(commandline -cp) rollart"
)
_FISH = (
    f'complete --command rollart --no-files --arguments "({_FISH_ASK.format("get-args")})" '
    f'--condition "{_FISH_ASK.format("is-args")}"\n'
)


_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def _shells(incomplete: str) -> list[str]:
    return [shell for shell in _SCRIPTS if shell.startswith(incomplete)]


def completion(
    shell: Annotated[
        str,
        typer.Argument(metavar="SHELL", help="bash, zsh or fish.", autocompletion=_shells),
    ],
) -> None:
    """Print a script that completes commands, options and names of runs in a shell.

    bash: `source <(rollart completion bash)` in ~/.bashrc; zsh: the same in ~/.zshrc, after
    compinit; fish: `rollart completion fish > ~/.config/fish/completions/rollart.fish`.
    """
    check_choice("completion", shell, _SCRIPTS)
    print(_SCRIPTS[shell], end="")


def run_names_with(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the runs of a local store that begin with a text."""
    store = context.params.get("store") or os.environ.get("ROLLART_STORE") or "runs"
    return sorted(name for name in _names(str(store)) if name.startswith(incomplete))


def _names(store: str) -> Iterator[str]:
    if "://" in store:
        return
    try:
        folders = list(Path(store).iterdir())
    except OSError:
        return
    yield from (folder.name for folder in folders if (folder / "run.json").exists())
