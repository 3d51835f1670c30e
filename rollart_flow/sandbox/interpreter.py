"""The Python of a box, whatever its image holds."""

from collections.abc import Sequence

from rollart_flow.sandbox.agent.runtime import VERSION
from rollart_flow.sandbox.bubblewrap.command_line import RUNTIME_PATH

_SCRIPT = (
    f"if [ -e {RUNTIME_PATH}/loader ]; then exec {RUNTIME_PATH}/loader --library-path "
    f'{RUNTIME_PATH}/lib {RUNTIME_PATH}/python/bin/{VERSION} -I -S "$@"; fi; '
    'exec python3 -I -S "$@"'
)


def python_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs Python with its standard library alone.

    It is the Python that the box brings for its own agent (bubblewrap, containers), or else the
    `python3` of its image.
    """
    return ["/bin/sh", "-c", _SCRIPT, "sh", *arguments]
