"""Harness: the setting of an agent that is a program."""

from typing import Any

import pytest

from rollart_flow import Harness
from rollart_flow.errors import SettingsError
from rollart_flow.harness.harness import named_harness
from rollart_flow.harness.profile import AgentProfile, LaunchSite
from rollart_flow.harness.registry import AGENTS

SITE = LaunchSite(
    url="http://127.0.0.1:1",
    key="k",
    model="policy",
    instruction="Repair {key} and {url}.",
    workdir="/work",
    home="/tmp/agent",
    programs="/opt/agent",
    context_tokens=16_384,
)


def command(**settings: Any) -> Harness:
    return Harness("command", **{"command": ["agent"], "wire": "chat", **settings})


def test_texts_of_a_command_say_what_the_program_finds_in_its_box() -> None:
    harness = command(
        command=["python3", "{programs}/agent.py", "--at={workdir}", "{instruction}"],
        variables={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}"},
        files={"{home}/settings.json": '{"model": "{model}"}'},
    )
    launch = harness.profile().launch(SITE)
    assert launch.command == [
        "python3", "/opt/agent/agent.py", "--at=/work", "Repair {key} and {url}.",
    ]  # fmt: skip
    assert launch.variables == {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "k"}
    assert launch.files == {"/tmp/agent/settings.json": '{"model": "policy"}'}
    assert launch.stdin == ""


def test_a_program_whose_command_does_not_name_the_instruction_reads_it() -> None:
    assert command().profile().launch(SITE).stdin == SITE.instruction


def test_a_text_names_a_harness_with_settings() -> None:
    text = "command(command=('agent',), wire='chat', timeout_s=5)"
    assert named_harness(text) == command(command=("agent",), timeout_s=5.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"command": []}, "given together"),
        ({"wire": None}, "given together"),
        ({"wire": "soap"}, "wire should be 'chat', 'responses', 'messages' or 'google'"),
        ({"timeout_s": 0}, "timeout_s should be greater than 0"),
        ({"trains": ("all",)}, "trains.0 should be"),
        ({"builder": "longest"}, "builder should be"),
        ({"variables": {"JUDGE_API_KEY": "plain"}}, "agent.variables.JUDGE_API_KEY is plain text"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        command(**settings)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_unknown_agent_is_refused_with_the_names() -> None:
    with pytest.raises(SettingsError, match=r"agent='comand': .*did you mean command"):
        Harness("comand")
    with pytest.raises(SettingsError, match="programs='nowhere' is no folder"):
        command(programs="nowhere").profile().programs()


def test_only_the_agent_command_takes_a_command() -> None:
    class Known(AgentProfile):
        name = "known"

        def launch(self, site: LaunchSite) -> Any: ...

        def programs(self) -> None: ...

    assert isinstance(Known.made({}), Known)
    with pytest.raises(SettingsError, match="'known' is started as its profile says; variables"):
        Known.made({"variables": (("A", "b"),)})


@pytest.mark.parametrize("name", AGENTS.names())
def test_each_profile_has_the_name_under_which_it_is_registered(name: str) -> None:
    assert AGENTS.load(name).name == name
