"""How each program is started and pointed at the gateway, without starting it."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles import pins
from rollart_flow.harness.profiles.installed import InstalledProfile
from rollart_flow.harness.registry import AGENTS

KEY = "rollart-key-of-a-session"
SITE = LaunchSite(
    url="http://127.0.0.1:8123",
    key=KEY,
    model="policy",
    instruction="--help me; it's 'a' \"task\"\nwith {braces} and $(commands)",
    workdir="/work",
    home="/home/agent",
    programs="/opt/agent",
    context_tokens=24_576,
)
NAMES = tuple(name for name, kind in AGENTS.variants() if issubclass(kind, InstalledProfile))


def launched(name: str) -> Launch:
    return AGENTS.load(name)().launch(SITE)


def test_nine_programs_have_profiles_of_their_names() -> None:
    assert len(NAMES) == 9
    assert all(AGENTS.load(name).name == name for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_pointed_at_the_gateway(name: str) -> None:
    launch = launched(name)
    told = "\n".join((*launch.command, *launch.variables.values(), *launch.files.values()))
    assert SITE.url in told
    assert SITE.model in told
    assert AGENTS.load(name).wire in {"chat", "responses", "messages", "google"}


@pytest.mark.parametrize("name", NAMES)
def test_the_key_is_in_a_variable_alone(name: str) -> None:
    """A command line is shown by `ps`, and files outlive a program."""
    launch = launched(name)
    assert KEY in launch.variables.values()
    assert not any(KEY in text for text in (*launch.command, *launch.files.values()))


@pytest.mark.parametrize("name", NAMES)
def test_the_instruction_reaches_the_program_once_as_it_is(name: str) -> None:
    launch = launched(name)
    files = (json.loads(text) for path, text in launch.files.items() if path.endswith(".yaml"))
    tasks = [settings["run"]["task"] for settings in files]
    found = [text for text in (launch.stdin, *launch.command, *tasks) if text == SITE.instruction]
    assert len(found) == 1
    if SITE.instruction in launch.command:
        assert list(launch.command[-2:]) == ["--", SITE.instruction]


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_in_the_home(name: str) -> None:
    launch = launched(name)
    assert all(path.startswith(f"{SITE.home}/") for path in launch.files)
    assert not set(launch.variables) & {"HOME", "PATH", "LANG"}


@pytest.mark.parametrize("name", NAMES)
def test_the_program_is_in_its_folder(name: str) -> None:
    first, second = launched(name).command[:2]
    if first == "python3":
        assert AGENTS.load(name).package.startswith("pip:")
        assert second.startswith((SITE.programs, SITE.home))
    else:
        assert first.startswith(f"{SITE.programs}/node_modules/")


def test_codex_gets_settings_that_it_can_read() -> None:
    settings = tomllib.loads(launched("codex").files["/home/agent/.codex/config.toml"])
    provider = settings["model_providers"][settings["model_provider"]]
    assert provider["base_url"] == "http://127.0.0.1:8123/v1"
    assert provider["wire_api"] == "responses"
    assert not provider["supports_websockets"]
    assert provider["env_key"] in launched("codex").variables


TOLD_CONTEXT: dict[str, Callable[[Launch], float]] = {
    "claude-code": lambda launch: int(launch.variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"]),
    "codex": lambda launch: tomllib.loads(_file(launch, "config.toml"))["model_context_window"],
    "gemini-cli": lambda launch: (
        json.loads(_file(launch, "settings.json"))["model"]["compressionThreshold"] * 2**20 / 0.7
    ),
    "qwen-code": lambda launch: json.loads(_file(launch, "settings.json"))["model"][
        "generationConfig"
    ]["contextWindowSize"],
    "opencode": lambda launch: _first(
        json.loads(_file(launch, "opencode.json"))["provider"], "models"
    )["limit"]["context"],
    "pi": lambda launch: _first(json.loads(_file(launch, "models.json"))["providers"])["models"][0][
        "contextWindow"
    ],
}
"""Where programs are told the size of the context; those that never shorten a conversation have no
such setting."""
NOT_TOLD = {"mini-swe-agent", "smolagents", "openai-agents"}


def _file(launch: Launch, name: str) -> str:
    (text,) = (text for path, text in launch.files.items() if path.endswith(f"/{name}"))
    return text


def _first(named: dict[str, Any], *names: str) -> Any:
    (found,) = named.values()
    for name in names:
        found = _first(found[name])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_told_the_context_of_the_policy(name: str) -> None:
    assert (name in TOLD_CONTEXT) != (name in NOT_TOLD)
    if name in TOLD_CONTEXT:
        assert round(TOLD_CONTEXT[name](launched(name))) == SITE.context_tokens


def test_a_small_context_has_room_for_a_history() -> None:
    """pi and opencode compact as soon as an answer may not fit any more."""
    compaction = json.loads(_file(launched("pi"), "settings.json"))["compaction"]
    assert sum(compaction.values()) < SITE.context_tokens / 2
    (model,) = json.loads(_file(launched("opencode"), "opencode.json"))["provider"].values()
    assert _first(model["models"])["limit"]["output"] < SITE.context_tokens / 2


def test_only_smolagents_works_without_tools() -> None:
    assert [name for name in NAMES if not AGENTS.load(name).needs_tools] == ["smolagents"]


def test_pins_name_one_exact_version() -> None:
    found = [value for value in vars(pins).values() if isinstance(value, pins.Pin)]
    assert len(found) == len(NAMES)
    for pin in found:
        for wanted in pin.wanted("x64"):
            assert wanted.split("@")[-1].split("==")[-1].replace(".", "").isdigit(), wanted


def test_a_program_that_is_not_installed_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLART_AGENTS", str(tmp_path))
    codex = AGENTS.load("codex")()
    with pytest.raises(SettingsError, match=r"it is not in .*run `rollart agents install codex`"):
        codex.programs()
    (tmp_path / "codex").mkdir()
    (tmp_path / "codex" / "rollart.json").write_text('{"version": "0.1.0"}')
    with pytest.raises(SettingsError, match=r"version 0\.1\.0 of it is in"):
        codex.programs()
