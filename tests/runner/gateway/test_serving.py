"""A policy served by hand: official clients talk to it, and a run holds what was sampled."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest

from rollart_flow.analysis.delivery import token_account
from rollart_flow.errors import RollartError, RunExistsError, SettingsError
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.runner.gateway import GatewayAddresses, GatewayResult, GatewaySettings
from rollart_flow.runner.gateway.recorder import gateway_run
from rollart_flow.runner.gateway.serving import serving
from rollart_flow.runner.gateway.settings import LARGEST_CONTEXT, TINY_CONTEXT, found_policy
from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.store.layout import run_names
from tests.gateway.sdks import anthropic, openai

Test = Callable[[GatewayAddresses], Awaitable[None]]
HELLO: Any = [{"role": "user", "content": "Hello."}]


def tiny(store: Path, name: str | None = None) -> GatewaySettings:
    """Settings of a small gateway."""
    return GatewaySettings(policy="tiny", store=str(store), name=name, context=512, max_tokens=6)


def served(settings: GatewaySettings, test: Test) -> GatewayResult:
    """Run a test against a policy that is served, and return what was recorded."""

    async def main(policy: Policy, writer: Any) -> GatewayResult:
        async with serving(settings, policy, writer) as gateway:
            await test(gateway.addresses)
        return gateway.result()

    with found_policy(settings) as policy, gateway_run(settings, policy) as writer:
        return asyncio.run(main(policy, writer))


async def nothing(addresses: GatewayAddresses) -> None:
    """Ask nothing."""


@asynccontextmanager
async def chat(addresses: GatewayAddresses) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=addresses.chat, api_key=addresses.key, max_retries=0
    ) as client:
        yield client


def test_official_clients_are_answered_and_a_run_holds_every_token(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    got: list[int] = []
    keys: list[str] = []

    async def test(addresses: GatewayAddresses) -> None:
        keys.append(addresses.key)
        assert open_run(addresses.run).status is RunStatus.RUNNING
        async with chat(addresses) as client:
            first = await client.chat.completions.create(model="any", messages=HELLO)
            assert first.usage is not None
            got.append(first.usage.completion_tokens)
            said = first.choices[0].message.content
            history = [*HELLO, {"role": "assistant", "content": said}, *HELLO]
            stream = await client.chat.completions.create(
                model="any", messages=history, stream=True, stream_options={"include_usage": True}
            )
            got.extend([chunk.usage.completion_tokens async for chunk in stream if chunk.usage])
        async with anthropic.AsyncAnthropic(
            base_url=addresses.messages, api_key=addresses.key, max_retries=0
        ) as client:
            message = await client.messages.create(model="any", max_tokens=4, messages=HELLO)
            got.append(message.usage.output_tokens)
            counted = await client.messages.count_tokens(model="any", messages=HELLO)
            assert counted.input_tokens == message.usage.input_tokens

    result = served(settings, test)
    run = open_run("gateway-1", store=tmp_path)
    assert result == GatewayResult(run.uri, 1, 3, sum(got))
    assert run.status is RunStatus.FINISHED
    assert sum(sampled(run)) == sum(got)
    calls = run.exchanges.sort("number").collect()
    assert calls["wire"].to_list() == ["chat", "chat", "messages"]
    assert calls["parent"].to_list() == [None, 0, None]
    assert (calls["answer_end"] - calls["answer_start"]).to_list() == got
    assert calls["mismatches"].sum() == 0
    assert calls["trained_tokens"].to_list() == got  # of a side call, too
    assert str(token_account(run)) == f"100.0% of {sum(got)} sampled tokens lack only a reward"
    stored = json.dumps([*calls.to_dicts(), run.info.settings], default=str)
    assert not any(key in stored for key in keys)


def sampled(run: Run) -> list[int]:
    """Number of sampled tokens of each turn."""
    turns = run.trajectories.select(
        (pl.col("token_versions").list.eval(pl.element() >= 0)).list.sum()
    )
    return [int(value) for (value,) in turns.collect().iter_rows()]


def test_the_newest_policy_of_a_run_is_served(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "first")
    served(settings, nothing)
    answers: list[int] = []

    async def test(addresses: GatewayAddresses) -> None:
        async with chat(addresses) as client:
            answer = await client.chat.completions.create(model="any", messages=HELLO)
            assert answer.usage is not None
            answers.append(answer.usage.completion_tokens)

    served(replace(settings, policy="first", name="second"), test)
    assert answers
    assert sum(sampled(open_run("second", store=tmp_path))) == sum(answers)
    assert open_run("first", store=tmp_path).exchanges.collect().is_empty()


def refused(settings: GatewaySettings) -> str:
    """The error of a gateway that cannot be served, which leaves no run and no lock."""
    before = run_names(settings.store)
    with pytest.raises(RollartError) as caught:
        served(settings, nothing)
    assert isinstance(caught.value, SettingsError | RunExistsError)
    assert run_names(settings.store) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_served_is_one_line_and_leaves_no_run(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "mine")
    assert "'unknown' is no run in" in refused(replace(settings, policy="unknown"))
    assert "policy.engine='vlm'" in refused(replace(settings, engine="vlm"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in refused(replace(settings, port=port))
    served(settings, nothing)
    assert "choose another --name" in refused(settings)


def test_a_template_is_needed_and_a_place_for_tools_unless_none_are_sent(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    materialize(Policy.tiny(), folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    settings = GatewaySettings(
        policy=str(folder), store=str(tmp_path / "runs"), context=128, max_tokens=6
    )
    _, _, without = config["chat_template"].partition("{% endif %}")
    file.write_text(json.dumps({**config, "chat_template": without}))
    assert "no place for tools" in refused(settings)
    served(replace(settings, tools=False), nothing)
    del config["chat_template"]
    file.write_text(json.dumps(config))
    assert "no chat template" in refused(settings)


def test_the_context_is_what_the_model_has_unless_one_is_given(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    materialize(Policy.tiny(max_context=256), folder)
    settings = GatewaySettings(policy=str(folder), store=str(tmp_path))

    def context(settings: GatewaySettings) -> int:
        with found_policy(settings) as policy:
            return policy.max_context

    assert context(settings) == 256
    assert context(replace(settings, context=64)) == 64
    assert context(replace(settings, policy="tiny")) == TINY_CONTEXT
    assert TINY_CONTEXT < LARGEST_CONTEXT


def test_prometheus_finds_the_figures_of_a_gateway(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    told: list[str] = []

    async def test(addresses: GatewayAddresses) -> None:
        async with chat(addresses) as client:
            await client.chat.completions.create(model="any", messages=HELLO)
            with pytest.raises(openai.AuthenticationError):
                await client.with_options(api_key="stranger").models.list()
        assert addresses.metrics is not None
        async with httpx.AsyncClient() as prometheus:
            told.append((await prometheus.get(addresses.metrics)).text)

    served(replace(tiny(tmp_path, "mine"), metrics=0), test)
    found = {
        (sample.name, sample.labels.get("refusal")): sample.value
        for family in text_string_to_metric_families(told[0])
        for sample in family.samples
        if sample.labels["run"] == "mine"
    }
    assert found["rollart_gateway_calls_total", None] == 1
    assert found["rollart_gateway_unknown_keys_total", None] == 1
    assert found["rollart_gateway_refusals_total", "key"] == 1
    assert found["rollart_gateway_first_token_seconds_count", None] == 1
    assert found["rollart_gateway_first_token_seconds_sum", None] > 0
    assert found["rollart_gateway_under_way", None] == 0


def test_a_port_for_prometheus_that_is_taken_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"--metrics: cannot listen on port {port} of 127.0.0.1: Address already in use"
        with pytest.raises(SettingsError, match=said):
            served(replace(tiny(tmp_path), metrics=port), nothing)
