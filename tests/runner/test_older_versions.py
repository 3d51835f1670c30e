"""A run that version 0.1.0 was interrupted in is read, replayed, forked and resumed today."""

from importlib import import_module
from math import isclose
from pathlib import Path

import pytest

from rollart_flow import runner
from rollart_flow.former_modules import FORMER_MODULES
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay import replay_step, replay_trajectory
from rollart_flow.runner.fork import prepare_fork
from rollart_flow.runner.retrain import bring_to, stored_pipeline, stored_trainer
from rollart_flow.sandbox.images.archive import decompressed, unpack
from rollart_flow.sandbox.images.tree import TreeWriter
from rollart_flow.store import Run, RunStatus, open_run

STORED = Path(__file__).parent / "data" / "interrupted-0.1.0.tar.gz"
STEPS, RECORDED = 8, 4
"""Steps of its pipeline, and those that it had trained."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run as it was interrupted; read it only."""
    return unpacked(tmp_path_factory.mktemp("stored"))


def unpacked(folder: Path) -> Run:
    with STORED.open("rb") as file, decompressed(file) as archive:
        unpack(archive, TreeWriter(folder, 64 << 20, for_boxes=False))
    return open_run(str(folder / "before"))


def test_its_tables_are_read(stored: Run) -> None:
    assert stored.info.status is RunStatus.INTERRUPTED
    assert stored.steps.sort("seq").collect()["step"].to_list() == list(range(1, RECORDED + 1))
    assert stored.batch(step=2).num_rows == 8
    assert stored.as_of(step=2).steps.collect().height == 2


def test_its_step_is_replayed(stored: Run) -> None:
    """To the last bit where it was recorded; another processor may round otherwise."""
    replayed = replay_step(stored.uri, 3)
    assert "packed" not in (replayed.difference or ""), "its rows were padded, and are again"
    for name in ("loss", "grad_norm"):
        recorded, recomputed = replayed.recorded[name], replayed.recomputed[name]
        assert isinstance(recorded, float)
        assert isinstance(recomputed, float)
        assert isclose(recorded, recomputed, rel_tol=1e-3, abs_tol=1e-6)


def test_its_trajectory_is_replayed(stored: Run) -> None:
    first = stored.trajectories.select("trajectory_id").first().collect().item()
    assert replay_trajectory(stored.uri, first).equal


def test_it_is_forked(stored: Run, tmp_path: Path) -> None:
    """The fork stands at its start, where a step of its parent can be trained."""
    source = (Path(stored.uri) / "pipeline.py").read_text()
    loaded = load_source(source, tmp_path / "before.py", {"steps": "3"})
    fork = Run(prepare_fork(stored.uri, 2, loaded, store=str(tmp_path), name="fork"))
    trainer = stored_trainer(fork, stored_pipeline(fork))
    assert list(bring_to(fork, trainer, 2)) == []
    assert trainer.train_step(3, stored.batch(3)).step == 3


def test_it_is_resumed(tmp_path: Path) -> None:
    interrupted = unpacked(tmp_path)
    before = interrupted.steps.sort("seq").collect()
    assert runner.resume(interrupted.uri, executor="inline").status is RunStatus.FINISHED
    after = open_run(interrupted.uri).steps.sort("seq").collect()
    assert after["step"].to_list() == list(range(1, STEPS + 1))
    assert after.head(RECORDED).equals(before)


@pytest.mark.parametrize("former", FORMER_MODULES)
def test_a_former_module_gives_what_took_its_place(former: str) -> None:
    today = import_module(FORMER_MODULES[former])
    public = [name for name in vars(today) if not name.startswith("_")]
    assert public
    assert all(getattr(import_module(former), name) is getattr(today, name) for name in public)


@pytest.mark.parametrize(
    ("module", "former", "today"),
    [
        ("algorithms.losses", "CISPO", "algorithms.recipes.cispo:CISPO"),
        ("algorithms.losses", "Decoupled", "algorithms.recipes.decoupled_ppo:Decoupled"),
        ("algorithms.losses", "DoubleSided", "algorithms.recipes.double_sided:DoubleSided"),
        ("algorithms.losses", "GSPO", "algorithms.recipes.gspo:GSPO"),
        ("algorithms.losses", "IPA", "algorithms.recipes.ipa:IPA"),
        ("algorithms.losses", "Kimi", "algorithms.recipes.kimi:Kimi"),
        ("algorithms.losses", "TOPR", "algorithms.recipes.topr:TOPR"),
        ("simulation.latencies", "Constant", "simulation.latencies:FixedLatency"),
        ("simulation.latencies", "Mixture", "simulation.latencies:LatencyMixture"),
        ("simulation.workloads", "Domain", "simulation.workloads:SimulatedDomain"),
        ("resources", "Environment", "resources.worker:EnvironmentCls"),
        ("resources", "Reward", "resources.worker:RewardCls"),
        ("resources", "Pool", "resources.manager:ResourcePool"),
    ],
)
def test_a_former_name_gives_what_took_its_place(module: str, former: str, today: str) -> None:
    home, _, name = today.partition(":")
    found = getattr(import_module(f"rollart_flow.{module}"), former)
    assert found is getattr(import_module(f"rollart_flow.{home}"), name)
