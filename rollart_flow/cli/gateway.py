"""`rollart gateway`: a policy behind the wires of providers, for any tool, recorded as a run."""

import os
import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from rollart_flow.cli.arguments import AsJson, NewName, Store
from rollart_flow.cli.output import console, grid, print_json
from rollart_flow.cli.tracking import Metrics
from rollart_flow.text import counted

if TYPE_CHECKING:
    from rollart_flow.runner.gateway import GatewayAddresses

_CLIENTS = (
    ("claude-code", "ANTHROPIC_BASE_URL={messages} ANTHROPIC_API_KEY={key} claude"),
    ("gemini-cli", "GOOGLE_GEMINI_BASE_URL={google} GEMINI_API_KEY={key} gemini"),
    (
        "qwen-code",
        "OPENAI_BASE_URL={chat} OPENAI_API_KEY={key} OPENAI_MODEL=policy qwen --auth-type openai",
    ),
    ("OpenAI's SDK", "OPENAI_BASE_URL={chat} OPENAI_API_KEY={key}"),
    ("Anthropic's SDK", "ANTHROPIC_BASE_URL={messages} ANTHROPIC_API_KEY={key}"),
)
"""Environment variables that point each client at the gateway."""


ServedPolicy: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="POLICY",
        help="A folder of Hugging Face, a repository, a run (its newest version), or `tiny`.",
    ),
]
Port: TypeAlias = Annotated[
    int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")
]
EngineName: TypeAlias = Annotated[
    str | None, typer.Option(help="Engine of the policy; the embedded one unless given.")
]
Context: TypeAlias = Annotated[
    int | None, typer.Option(min=8, help="Most tokens of a prompt with its answer.")
]
MaxTokens: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Most tokens of an answer, whatever a client asks for.")
]
Temperature: TypeAlias = Annotated[
    float, typer.Option(min=0.0, help="Temperature, whatever a client asks for.")
]
Tools: TypeAlias = Annotated[
    bool, typer.Option("--tools/--no-tools", help="Whether clients may send tools.")
]
Volatile: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGEX",
        help="What a client changes with every call before the first answer, such as the time; "
        "it is left out of prompts. Repeatable.",
    ),
]
Idle: TypeAlias = Annotated[
    float, typer.Option(min=0.0, help="Seconds without a call that end a conversation.")
]


def gateway(
    policy: ServedPolicy,
    port: Port = 0,
    name: NewName = None,
    store: Store = None,
    engine: EngineName = None,
    context: Context = None,
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 1.0,
    tools: Tools = True,
    volatile: Volatile = None,
    idle: Idle = 30.0,
    metrics: Metrics = None,
    as_json: AsJson = False,
) -> None:
    """Serve a policy to OpenAI, Anthropic and Google clients until Ctrl-C, and record a run."""
    # As in the processes of engines: more threads only help large models.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from rollart_flow.runner.gateway import GatewaySettings, serve_policy

    settings = GatewaySettings(
        policy=policy, engine=engine, context=context, max_tokens=max_tokens,
        temperature=temperature, tools=tools, idle_s=idle, port=port, name=name, store=store,
        volatile=tuple(volatile or ()), metrics=metrics,
    )  # fmt: skip
    result = serve_policy(settings, _printed if as_json else _show)
    if not as_json:
        said = (
            f"{counted(result.calls, 'call')} in {counted(result.conversations, 'conversation')}, "
        )
        console().print(f"{said}{result.tokens} sampled tokens in {result.run}", soft_wrap=True)
        console().print(f"  rollart show {shlex.quote(result.run)}", soft_wrap=True)


def _printed(addresses: "GatewayAddresses") -> None:
    """Print the addresses as JSON, at once, for the program that waits for them."""
    print_json({name: value for name, value in asdict(addresses).items() if value is not None})
    sys.stdout.flush()


def _show(addresses: "GatewayAddresses") -> None:
    """Print the address of each wire, and how clients are pointed at it."""
    out, values = console(), asdict(addresses)
    wires = ("chat", "responses", "messages", "google")
    out.print(grid(("wire", "base URL"), ((wire, values[wire]) for wire in wires)))
    out.print(f"key  {addresses.key}", soft_wrap=True)
    out.print(f"run  {addresses.run}", soft_wrap=True)
    if addresses.metrics is not None:
        out.print(f"metrics  {addresses.metrics}", soft_wrap=True)
    out.print("clients", style="bold")
    for client, command in _CLIENTS:
        out.print(f"  {client}: {command.format(**values)}", soft_wrap=True)
    out.print("Ctrl-C ends the run")
    sys.stdout.flush()
