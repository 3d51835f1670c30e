"""Sessions of the gateway under virtual time: no seed breaks a guarantee, and a bug breaks one."""

import pytest

from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.gateway.core import structure
from rollart_flow.gateway.core.forest import CapturedTurn
from rollart_flow.gateway.core.retries import CallUnderWay
from rollart_flow.gateway.core.structure import Shape
from rollart_flow.types import Message
from tests.cli.shell import refused
from tests.dst.captured import fuzz_gateway
from tests.dst.test_main import arguments_of, run

SEEDS = range(200)


def test_no_seed_breaks_a_guarantee() -> None:
    results = [*fuzz_gateway(SEEDS)]
    assert [(each.command, each.error) for each in results if not each.ok] == []
    assert sum(each.checks for each in results) > 100 * len(SEEDS)


def test_a_seed_gives_the_same_session_again() -> None:
    once, again = (next(fuzz_gateway([11])) for _ in range(2))
    assert once.log == again.log
    assert len(once.log) > 10


def _always(self: object) -> bool:
    return True


def _never(self: object) -> bool:
    return False


def _nothing(self: object) -> None:
    return None


def _one_shape(message: Message) -> Shape:
    return (message.role, ("", ()), ())


@pytest.mark.parametrize(
    ("owner", "name", "instead", "broken"),
    [
        (CapturedTurn, "ends", property(_always), "conversation: call"),
        (Recorder, "withdraw", _nothing, "tokens: "),
        (CallUnderWay, "delivered", property(_never), "delivered: call"),
        (structure, "shape_of", _one_shape, "conversation: call"),
        (CallUnderWay, "lose", _nothing, "lost answers: "),
    ],
)
def test_a_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, instead: object, broken: str
) -> None:
    monkeypatch.setattr(owner, name, instead)
    errors = (str(each.error) for each in fuzz_gateway(range(60)) if not each.ok)
    assert any(broken in error for error in errors)


def test_the_command_of_a_session_is_that_of_the_gateway() -> None:
    said = run("--gateway", "--seeds", "0:2")
    assert said.code == 0
    assert "2 seeds, " in said.out
    assert next(fuzz_gateway([5])).command == "make fuzz SEEDS=5 GATEWAY=1"
    assert [*arguments_of("make fuzz SEEDS=5 GATEWAY=1")] == ["--seeds", "5", "--gateway"]
    assert "no bugs to plant in the gateway" in refused(run("--gateway", "--bug", "x"))
