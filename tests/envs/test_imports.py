"""Naming a domain loads nothing heavy."""

import subprocess
import sys


def test_domains_load_neither_gymnasium_nor_ray_nor_torch() -> None:
    program = (
        "import sys\n"
        "from rollart_flow.envs import Arithmetic, Domain, Environment, FrozenLake\n"
        "from rollart_flow.rewards import environment_reward\n"
        "FrozenLake(size=4), Arithmetic(digits=2)\n"
        "import rollart_flow.envs.adapter, rollart_flow.rewards.score\n"
        "heavy = {'gymnasium', 'ray', 'torch', 'numpy', 'pyarrow', 'polars', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_environments_that_run_in_a_process_load_neither_torch_nor_ray() -> None:
    program = (
        "import sys\n"
        "from rollart_flow.envs import GemGame, MathWithPython, ReasoningGym, TextWorld\n"
        "from rollart_flow.errors import MissingExtraError\n"
        "from rollart_flow.types import Action\n"
        "domains = GemGame('Sokoban-v0-easy'), ReasoningGym(('gcd',)), TextWorld(rooms=1)\n"
        "for domain in domains:\n"
        "    try:\n"
        "        domain.make().reset(0, domain.task(0).payload)\n"
        "    except MissingExtraError:\n"
        "        continue\n"
        "mathematics = MathWithPython().make()\n"
        "mathematics.reset(0, MathWithPython().task(0).payload)\n"
        "mathematics.step(Action('sqrt(2)'))\n"
        "print(sorted({'ray', 'torch', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
