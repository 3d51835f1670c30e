"""What of Megatron-core works on a machine, and the refusal of the rest."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest

from rollart_flow import Policy
from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.trainers.backends.megatron import capabilities as capabilities_module
from rollart_flow.trainers.backends.megatron.capabilities import Capabilities, capabilities
from rollart_flow.trainers.build import check_trainer
from rollart_flow.trainers.layout import Layout
from rollart_flow.trainers.settings import RankSettings

CPU = Capabilities(cuda=False, transformer_engine=False, stack=False)


GPU = Capabilities(cuda=True, transformer_engine=True, stack=True)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(capabilities_module, "version", nothing)
    with pytest.raises(MissingExtraError, match=r"rollart-flow\[megatron\]"):
        check_trainer(Policy.tiny(), RankSettings(backend="megatron"))


@pytest.mark.parametrize(
    ("there", "layout", "setting"),
    [
        (CPU, Layout(tensor=2, sequence=True), "sequence_parallel"),
        (replace(GPU, transformer_engine=False), Layout(tensor=2, sequence=True), "engine"),
    ],
    ids=str,
)
def test_what_does_not_work_on_a_machine_is_one_line(
    there: Capabilities, layout: Layout, setting: str
) -> None:
    with pytest.raises(SettingsError, match=setting) as caught:
        there.check(layout)
    assert "\n" not in str(caught.value)


def test_what_works_on_a_machine_is_taken() -> None:
    CPU.check(Layout(tensor=2, pipeline=2, data=2))
    GPU.check(Layout(tensor=2, data=2, sequence=True))


def test_this_machine_says_what_it_can_do() -> None:
    assert "CPU" in capabilities(cuda=False).summary
    assert "GPU" in capabilities(cuda=True).summary
