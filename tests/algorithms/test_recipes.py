"""Recipes: a paper's defaults in one word, and no keyword that does nothing."""

import inspect
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollart_flow import Policy, algorithms
from rollart_flow.algorithms import (
    Algorithm,
    Critic,
    Decayed,
    cispo,
    conditional_sft,
    dapo,
    decoupled_ppo,
    distill,
    double_sided,
    dpo,
    dr_grpo,
    grpo,
    gspo,
    impala,
    ipa,
    ipo,
    kimi,
    kto,
    ppo,
    reinforce_plus_plus,
    rloo,
    sft,
    tis,
    tis_loss,
    topr,
)
from rollart_flow.algorithms.advantages import (
    GAE,
    BatchNormalized,
    ChunkReturns,
    Constant,
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
    VTrace,
)
from rollart_flow.algorithms.base import Estimator
from rollart_flow.algorithms.losses import Clipped, Linearized, Truncated, Vanilla
from rollart_flow.algorithms.recipe import Common
from rollart_flow.algorithms.recipes.cispo import CISPO
from rollart_flow.algorithms.recipes.conditional_sft import RewardWeighted
from rollart_flow.algorithms.recipes.decoupled_ppo import Decoupled
from rollart_flow.algorithms.recipes.distill import Distillation
from rollart_flow.algorithms.recipes.double_sided import DoubleSided
from rollart_flow.algorithms.recipes.dpo import DPO
from rollart_flow.algorithms.recipes.gspo import GSPO
from rollart_flow.algorithms.recipes.ipa import IPA
from rollart_flow.algorithms.recipes.ipo import IPO
from rollart_flow.algorithms.recipes.kimi import Kimi
from rollart_flow.algorithms.recipes.kto import MismatchedKTO
from rollart_flow.algorithms.recipes.topr import TOPR
from rollart_flow.algorithms.registry import CORRECTIONS, RECIPES
from rollart_flow.errors import SettingsError

ROOT = Path(__file__).parents[2]
Recipe = Callable[..., Algorithm]

DEFAULTS: dict[Recipe, Algorithm] = {
    grpo: Algorithm("grpo", Clipped(0.2, 0.28), GroupNormalized(1e-6)),
    dapo: Algorithm("dapo", Clipped(0.2, 0.28), GroupNormalized()),
    conditional_sft: Algorithm("conditional_sft", Vanilla(), RewardWeighted(1.0, 20.0)),
    sft: Algorithm("sft", Vanilla(), Constant()),
    rloo: Algorithm("rloo", Vanilla(), LeaveOneOut()),
    reinforce_plus_plus: Algorithm("reinforce_plus_plus", Clipped(0.2, 0.2), BatchNormalized()),
    ppo: Algorithm("ppo", Clipped(0.2, 0.2), GAE(1.0, 0.95), critic=Critic(0.5, 0.2)),
    impala: Algorithm("impala", Truncated(1.0), VTrace(1.0, 1.0, 1.0), critic=Critic()),
    decoupled_ppo: Algorithm(
        "decoupled_ppo", Decoupled(0.2, 0.2, 5.0, "recomputed"), GroupNormalized()
    ),
    tis_loss: Algorithm("tis_loss", Truncated(1.0), GroupNormalized()),
    cispo: Algorithm("cispo", CISPO(0.1, 0.1, mask=False), GroupNormalized()),
    topr: Algorithm("topr", TOPR(1.0, 1.0), GroupNormalized()),
    gspo: Algorithm("gspo", GSPO(3e-4, 4e-4), GroupNormalized(), "sequence"),
    ipa: Algorithm("ipa", IPA(5.0), ChunkReturns(0.95)),
    double_sided: Algorithm("double_sided", DoubleSided(0.2, 0.28, None), GroupNormalized()),
    kimi: Algorithm("kimi", Kimi(0.1), GroupCentered()),
}


def of_preferences(name: str, loss: Estimator) -> Algorithm:
    return Algorithm(name, Linearized(), loss, "constant", constant_tokens=1)


PREFERENCES: dict[Recipe, Algorithm] = {
    dpo: of_preferences("dpo", DPO(0.1, 0.0, 0.0)),
    ipo: of_preferences("ipo", IPO(0.1)),
    kto: of_preferences("kto", MismatchedKTO(0.1, 1.0, 1.0)),
}
"""Recipes whose loss an estimator computes: its parts cannot be replaced."""

OTHER: dict[str, Any] = {
    "temperature": 0.5, "beta": 0.7, "label_smoothing": 0.2, "nll": 0.5, "desirable": 1.3,
    "undesirable": 0.6, "reference_point": "zero", "entropy": 0.1,
    "clip": 0.11, "clip_high": 0.47, "dual": 3.0, "eps": 0.5, "ratio_to": "old", "gamma": 0.7,
    "lam": 0.8, "rho_bar": 1.5, "c_bar": 0.5, "cap": 1.7, "proximal": "interpolated", "mask": True,
    "positive": 0.4, "negative": 0.3, "high": 2.0, "max_lag": 2, "tau": 0.9,
}  # fmt: skip
"""Another value of every keyword of every recipe."""


def own_keywords(recipe: Recipe) -> list[str]:
    kinds = inspect.signature(recipe).parameters.items()
    own = [name for name, p in kinds if p.kind is inspect.Parameter.KEYWORD_ONLY]
    with_ratio = "WithRatio" in str(inspect.signature(recipe).parameters["common"].annotation)
    return [*own, "ratio_to"] if with_ratio else own


def test_defaults_are_those_of_the_papers() -> None:
    made = {recipe for _, recipe in RECIPES.variants()}
    assert made == {*DEFAULTS, *PREFERENCES, dr_grpo, distill}, "a recipe without a line here"
    for recipe, expected in {**DEFAULTS, **PREFERENCES}.items():
        assert recipe() == expected


def test_distillation_must_be_given_its_teacher(tmp_path: Path) -> None:
    expected = Algorithm("distill", Distillation("reverse", 2.0), Constant(), teacher=str(tmp_path))
    assert distill(tmp_path) == distill(str(tmp_path)) == expected
    assert distill(Policy.from_pretrained(str(tmp_path))) == expected
    assert distill(tmp_path, direction="forward", cap=3.0).loss == Distillation("forward", 3.0)
    assert pickle.loads(pickle.dumps(expected)) == expected


def test_dr_grpo_must_be_given_its_constant() -> None:
    assert dr_grpo(constant_tokens=64) == Algorithm(
        "dr_grpo", Clipped(0.2, 0.2), GroupCentered(), "constant", constant_tokens=64
    )
    with pytest.raises(SettingsError, match="constant_tokens=0: expected"):
        dr_grpo()


EVERY = [*DEFAULTS, *PREFERENCES]


@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: recipe.__name__)
def test_every_keyword_of_a_recipe_changes_what_it_makes(recipe: Recipe) -> None:
    """That what it makes then changes the loss is tested with the losses and estimators."""
    for name in own_keywords(recipe):
        assert recipe(**{name: OTHER[name]}) != recipe(), name


COMMON: dict[str, dict[str, Any]] = {
    "advantage": {"advantage": LeaveOneOut()},
    "aggregation": {"aggregation": "domain"},
    "constant_tokens": {"aggregation": "constant", "constant_tokens": 7},
    "correction": {"correction": tis(1.5)},
    "critic": {"critic": Critic(0.1), "advantage": GAE()},
    "entropy": {"entropy": 0.01},
    "kl": {"kl": 0.1},
    "kl_estimator": {"kl": 0.1, "kl_estimator": "k2"},
    "reference": {"kl": 0.1, "reference": 4},
    "staleness": {"staleness": Decayed(0.5)},
    "teacher": {"kl": 0.1, "teacher": "folder"},
}


@pytest.mark.parametrize("name", sorted(Common.__annotations__))
@pytest.mark.parametrize("recipe", list(DEFAULTS), ids=lambda recipe: recipe.__name__)
def test_a_common_keyword_is_used_or_refused(recipe: Recipe, name: str) -> None:
    if recipe is conditional_sft and {"advantage", "critic"} & {name}:
        with pytest.raises(SettingsError, match="conditional_sft is its advantage"):
            recipe(**COMMON[name])
        return
    given = {"critic": None, **COMMON[name]} if recipe in (ppo, impala) else COMMON[name]
    if recipe in (ppo, impala) and "advantage" not in given:
        given = {**given, "advantage": GroupNormalized()}
    reaches_mu = recipe().loss.anchor == "behavior" and "ratio_to" not in own_keywords(recipe)
    if name == "correction" and reaches_mu:
        with pytest.raises(SettingsError, match="would correct twice"):
            recipe(**given)
        return
    made = recipe(**given)
    for setting, value in given.items():
        assert getattr(made, setting) == value
    assert made.correction is None or made.loss.anchor != "behavior"


@pytest.mark.parametrize(
    ("recipe", "given", "message"),
    [
        (grpo, {"clp": 0.1}, r"grpo has no setting 'clp'"),
        (grpo, {"agregation": "token"}, r"no setting 'agregation'; did you mean aggregation\?"),
        (grpo, {"loss": Vanilla()}, r"no setting 'loss'; common ones are advantage, "),
        (grpo, {"eps": 0.1, "advantage": LeaveOneOut()}, r"eps=0.1 is of GRPO's own advantage"),
        (grpo, {"advantage": GAE()}, r"GAE needs values; give critic=Critic\(\)"),
        (grpo, {"critic": Critic()}, r"nothing trains the critic"),
        (dpo, {"kl": 0.1}, r"dpo has no setting 'kl'; common ones are entropy, teacher$"),
        (grpo, {"teacher": "folder"}, r"teacher is the reference of a penalty"),
        (dpo, {"teacher": Policy.tiny()}, r"teacher=.*: expected the folder of a model"),
        (distill, {"teacher": 3}, r"teacher=3: expected the folder of a model"),
        (distill, {"teacher": "a", "kl": 0.1, "reference": 3}, r"in place of reference"),
        (dpo, {"beta": 0.0}, r"beta=0.0: expected a number above 0"),
        (dpo, {"label_smoothing": 0.6}, r"label_smoothing=0.6: expected"),
        (ipo, {"beta": -1}, r"beta=-1: expected a number above 0"),
        (kto, {"desirable": 0}, r"desirable=0: expected a number above 0"),
        (kto, {"reference_point": "none"}, r"reference_point='none': expected one of mismatched"),
        (ppo, {"critic": None}, r"GAE needs values"),
        (grpo, {"correction": tis}, r"correction=<.*or a Correction; call it: tis"),
        (grpo, {"correction": Decayed()}, r"expected None or a Correction$"),
        (grpo, {"advantage": None}, r"advantage=None: expected a"),
        (grpo, {"staleness": 0.9}, r"staleness=0.9: expected None or a Decayed$"),
        (grpo, {"critic": True, "advantage": GAE()}, r"critic=True: expected None or a Critic$"),
        (ppo, {"lam": 1.5}, r"lam=1.5: expected"),
        (Critic, {"coefficient": 0.0}, r"critic.coefficient=0.0: expected"),
        (Critic, {"clip": -1.0}, r"critic.clip=-1.0: expected"),
        (Critic, {"lr_scale": 0.0}, r"critic.lr_scale=0.0: expected"),
        (grpo, {"constant_tokens": 5}, r"constant_tokens=5: expected 0"),
        (ipa, {"correction": tis()}, r"would correct twice"),
        (grpo, {"kl": 0.1, "kl_estimator": "k4"}, r"kl_estimator='k4': expected"),
    ],
)
def test_a_wrong_keyword_is_one_line(
    recipe: Callable[..., object], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        recipe(**given)
    assert "\n" not in str(caught.value)


def test_stale_trajectories_count_for_less() -> None:
    import pyarrow as pa

    rows = pa.table(
        {
            "action_mask": pa.array([[True]] * 3, pa.list_(pa.bool_())),
            "staleness": pa.array([0, 1, 2], pa.int32()),
        }
    )
    assert grpo(staleness=Decayed(0.5)).weights(rows).tolist() == [1.0, 0.5, 0.25]
    assert grpo().weights(rows).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: recipe.__name__)
def test_what_a_recipe_makes_is_a_value(recipe: Recipe) -> None:
    made = recipe(entropy=0.1)
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(recipe(entropy=0.1)) != hash(recipe())


def test_recipes_load_no_torch() -> None:
    code = (
        "import sys; from rollart_flow.algorithms.registry import RECIPES; "
        "[recipe() for name, recipe in RECIPES.variants() if name not in ('dr_grpo', 'distill')]; "
        "assert not {'torch', 'ray', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_recipe_is_found_by_its_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One new file in the folder of recipes makes `rollart_flow.algorithms.NAME`."""
    package = Path(algorithms.__file__).parent
    shutil.copytree(package, tmp_path / "algorithms")
    source = (package / "recipes" / "rloo.py").read_text()
    (tmp_path / "algorithms" / "recipes" / "mine.py").write_text(source.replace("rloo", "mine"))
    code = (
        f"import rollart_flow; rollart_flow.__path__.insert(0, {str(tmp_path)!r}); "
        "from rollart_flow.algorithms import mine; print(mine().name)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert said.stdout.strip() == "mine"


def test_names_of_algorithms_are_listed_and_others_are_refused() -> None:
    assert {*RECIPES.names(), *CORRECTIONS.names(), "Algorithm", "Critic"} <= set(dir(algorithms))
    assert set(CORRECTIONS.names()) == {"icepop", "opsm", "tis"}
    with pytest.raises(AttributeError, match="no attribute 'grop'"):
        _ = algorithms.grop


def test_importing_the_package_loads_no_recipe() -> None:
    code = (
        "import sys, rollart_flow.algorithms as a; "
        "assert not {'torch', 'numpy', 'pyarrow'} & set(sys.modules); a.grpo(); "
        "assert 'rollart_flow.algorithms.recipes.ppo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
