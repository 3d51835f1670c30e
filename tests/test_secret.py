"""A secret is the name of a variable, wherever it goes."""

import pickle

import pytest

from rollart_flow import Secret
from rollart_flow.errors import SettingsError
from rollart_flow.pipeline.described import describe
from rollart_flow.secret import masked

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
