"""Environments of NeMo Gym: a resources server over HTTP, with one session of cookies an episode.

An episode posts its row to /seed_session, the policy's calls to the routes of its tools, and, once
it answers without a call, row and conversation to /verify, whose answer has the reward. Invariant:
a session's cookies and connections are closed with its episode.

Source: https://github.com/NVIDIA-NeMo/Gym (nemo-gym 0.4, base_resources_server.py and
responses_api_agents/simple_agent/app.py)
"""

from dataclasses import dataclass, field
from typing import ClassVar

from rollart_flow.control.environment import AsyncEnvironment
from rollart_flow.envs.base import Environment
from rollart_flow.envs.blocking import BlockingEnvironment
from rollart_flow.envs.foreign.base import ForeignDomain
from rollart_flow.envs.foreign.web import check_address
from rollart_flow.errors import SettingsError
from rollart_flow.secret import Secret


class NemoGymEnvironment(BlockingEnvironment):
    """An environment of NeMo Gym that blocks."""

    version = "nemo-gym/1"


@dataclass(frozen=True)
class NemoGym(ForeignDomain):
    """Environments of a NeMo Gym resources server, such as "http://127.0.0.1:8000".

    A row is a line of NeMo Gym's data sets: "responses_create_params" has the messages, as "input",
    and the tools; the server gets all columns. After `max_turns` actions the conversation is
    verified as it is, and the episode is truncated. Raises SettingsError if a setting is wrong.
    """

    environment: ClassVar[type[Environment]] = NemoGymEnvironment

    url: str
    """Address of the resources server: http:// or https://."""
    name: str = field(default="nemo-gym", kw_only=True)  # type: ignore[misc]  # see its base
    token: Secret | None = None
    """Sent as a bearer token."""
    revision: str = ""
    """Version of the resources server, which its answers do not tell; stored with each
    trajectory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_address(self.url, ("http", "https"), "NemoGym")
        if not self.rows:
            raise SettingsError(
                "NemoGym: rows is empty; name a file with a column responses_create_params, such "
                'as rows="train.jsonl"'
            )

    @property
    def version(self) -> str:
        return f"{self.environment.version}{self.revision and '/' + self.revision}"

    def make(self) -> Environment:
        return NemoGymEnvironment(self)

    def make_async(self) -> AsyncEnvironment:
        from rollart_flow.envs.foreign.nemo_gym_session import NemoGymSession

        return NemoGymSession(self)
