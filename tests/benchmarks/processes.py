"""Measures of processes."""

import psutil


def cpu_s() -> float:
    """CPU seconds of this process and its descendants so far."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    total: float = sum(time.user + time.system for time in times)
    return total
