"""Priority of the process that tracks a run, among all that compute on its machine.

While trackers start, it is low; then it is the lowest, so that a machine whose processors are all
busy gives them to the run; once the run has ended, it is low again, so that what is left is
written.
"""

import os
from contextlib import suppress
from pathlib import Path

LOW, LOWEST = 10, 19
"""Nice values: about a tenth, and a hundredth, of what a process at 0 gets beside it."""
_THREADS = Path("/proc/self/task")
_GROUP = Path("/proc/self/autogroup")
"""Nice value of the whole session, where the kernel schedules sessions and not processes."""


def set_priority(nice: int) -> None:
    """Set the priority of every thread of this process, as far as the system permits.

    A user without privileges can only lower it.
    """
    with suppress(OSError):
        _GROUP.write_text(str(nice if nice >= LOWEST else 0))  # of this session among all others
    try:
        threads = [int(entry.name) for entry in _THREADS.iterdir()]
    except OSError:  # only Linux has priorities of threads
        threads = [0]
    for thread in threads:
        with suppress(OSError):  # the thread has ended, or the priority may not be raised
            os.setpriority(os.PRIO_PROCESS, thread, nice)
