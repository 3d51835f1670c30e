"""Which answers may be evaluated."""

import pytest

from rollart_flow.envs.plain_answers import AnswerKind, answer_kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("3 + 4 * (2 - 1)", AnswerKind.PLAIN),
        ("x**2/2 + sin(x) + C", AnswerKind.PLAIN),
        ("[[1, 2], ['a', 'b']]", AnswerKind.PLAIN),
        ("word", AnswerKind.PLAIN),
        ("two words", AnswerKind.TEXT),
        ("", AnswerKind.TEXT),
        ("5!", AnswerKind.TEXT),
        ("open('x')", AnswerKind.CODE),
        ("x.y", AnswerKind.CODE),
        ("x[0]", AnswerKind.CODE),
        ("sin('1')", AnswerKind.CODE),
        ("exp(x, evaluate=1)", AnswerKind.CODE),
        ("[x for x in y]", AnswerKind.CODE),
        ("f'{x}'", AnswerKind.CODE),
        ("(y := 3)", AnswerKind.CODE),
        ("(" * 500 + ")" * 500, AnswerKind.TEXT),
    ],
)
def test_only_arithmetic_is_plain(text: str, kind: AnswerKind) -> None:
    assert answer_kind(text) is kind
