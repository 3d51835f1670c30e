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
