"""Processes that an environment starts die with it, however they are detached."""

from dataclasses import replace
from pathlib import Path

import psutil

from tests.chaos.held import Held
from tests.chaos.matrix import scenario, wait_until
from tests.chaos.place import UNEVALUATED, Place, ended

ROW = "process trees"
MARK = "86399.25"
"""Argument of the processes that environments start, by which they are found."""
STARTING = f'''
import subprocess
import sys

FORKS_TWICE = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "{MARK}"])
    os._exit(0)
"""


class StartingEnvironment(CoinEnvironment):
    inline = False

    def reset(self, seed, task):
        subprocess.Popen(["sleep", "{MARK}"], start_new_session=True)
        subprocess.run([sys.executable, "-c", FORKS_TWICE], check=True)
        return super().reset(seed, task)


@dataclass(frozen=True)
class Starting(Coin):
    environment: ClassVar[type[Environment]] = StartingEnvironment

    def make(self):
        return StartingEnvironment()
'''


def alive() -> list[int]:
    """Processes that environments started."""
    found = psutil.process_iter(["cmdline"])
    return [process.pid for process in found if process.info["cmdline"] == ["sleep", MARK]]


@scenario(ROW)
def processes_of_environments(folder: Path) -> Held:
    """The driver is killed, and later the run ends by itself: each time nothing is left."""
    place = Place(folder, executor="ray")
    text = STARTING + UNEVALUATED.replace("tasks(Coin()", "tasks(Starting()")
    with place.run(text, steps=10) as driver:
        place.wait_for_tenth(driver, 2)
        assert alive(), "no environment started anything"
        place.record.fault("SIGKILL")
        driver.kill()
        ended(driver, -9)
        wait_until(lambda: not alive(), "the end of what environments started", 60)
    place.finish(executor="ray")
    wait_until(lambda: not alive(), "the end of what environments started", 60)
    return replace(place.held(), note="nothing is left")
