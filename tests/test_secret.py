"""A secret is the name of a variable, wherever it goes."""

import pickle
from dataclasses import dataclass

import pytest

from rollart_flow import Secret
from rollart_flow.errors import SettingsError
from rollart_flow.pipeline.described import describe
from rollart_flow.secret import check_no_key, masked, variables_in

VALUE = 'sk-"hunter2"'


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Secret:
    monkeypatch.setenv("TEST_KEY", VALUE)
    return Secret.from_env("TEST_KEY")


def test_it_prints_as_stars_and_is_stored_as_a_name(secret: Secret) -> None:
    assert f"{secret} {secret!r} {[secret]}" == "*** *** [***]"
    assert describe(secret) == {"type": "Secret", "variable": "TEST_KEY"}
    assert VALUE.encode() not in pickle.dumps(secret)


def test_its_value_is_read_where_it_is_used(secret: Secret) -> None:
    assert pickle.loads(pickle.dumps(secret)).reveal() == VALUE


def test_a_value_that_was_read_is_masked_in_text_and_json(secret: Secret) -> None:
    secret.reveal()
    assert masked(f"refused: {VALUE}") == "refused: ***"
    assert masked('{"said": "sk-\\"hunter2\\""}') == '{"said": "***"}'


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(SettingsError, match="variable NO_SUCH_KEY is not set"):
        Secret.from_env("NO_SUCH_KEY").reveal()


def test_a_value_in_place_of_a_name_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError, match="takes the name") as raised:
        Secret.from_env("sk-abc def")
    assert "sk-abc" not in str(raised.value)


@pytest.mark.parametrize(
    "name",
    ["api_key", "judge.api_key", "openai_api_key", "token", "auth_token", "client_secret",
     "password", "db_passwd", "aws_secret_access_key", "API_KEY"],
)  # fmt: skip
def test_plain_text_in_a_field_that_is_named_like_a_key_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=r"use rollart_flow\.Secret\.from_env") as raised:
        check_no_key(name, "hunter2")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", "16"), ("token_ids", "1"), ("eos_token", 3), ("tokenizer", "gpt2"),
     ("key_variable", "A"), ("token_variable", "A"), ("stop_tokens", "x"), ("monkey", "x"),
     ("key", "answer"), ("token", Secret("A")), ("token", None), ("api_key", "")],
)  # fmt: skip
def test_false_friends_pass(name: str, value: object) -> None:
    check_no_key(name, value)


@dataclass(frozen=True)
class Held:
    keys: tuple[Secret, ...]
    inner: dict[str, Secret]


def test_the_variables_of_nested_secrets_are_found() -> None:
    held = Held((Secret("A"), Secret("B")), {"c": Secret("C")})
    assert variables_in(held) == {"A", "B", "C"}
