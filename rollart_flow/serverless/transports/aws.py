"""The `lambda://name?region=...` transport: a function on AWS Lambda, invoked through boto3.

Credentials, region and endpoint come from the usual AWS sources (environment, profile,
`AWS_ENDPOINT_URL_LAMBDA`). boto3 blocks, so calls run in separate threads. A thread cannot be
cancelled: the thread of an abandoned call lives until botocore's read timeout, which is the maximum
time of an attempt. There are enough threads that this does not delay other calls.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import boto3  # type: ignore[import-untyped]
import botocore.exceptions  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]

from rollart_flow.errors import EndpointTroubleError, ServerlessError, SettingsError
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports.base import Transport, limited

_CONNECT_S = 10.0
_THREADS_A_PLACE = 4
_TOO_MANY, _SERVER_ERROR = 429, 500
_SHOWN_CHARACTERS = 200
_TROUBLE = (
    botocore.exceptions.HTTPClientError,
    botocore.exceptions.ConnectionError,
    botocore.exceptions.IncompleteReadError,
)
"""Errors that a retry may resolve."""


class LambdaTransport(Transport):
    """A transport with one client for all threads, as botocore allows. Lambda accepts calls of up
    to 6 MB."""

    def __init__(self, name: str, region: str | None, policy: CallPolicy) -> None:
        longest_s = policy.attempt_timeout_s or policy.deadline_s
        threads = _THREADS_A_PLACE * policy.max_concurrent
        settings = Config(
            connect_timeout=min(_CONNECT_S, longest_s),
            read_timeout=longest_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=threads,
        )
        try:
            self._client = boto3.client("lambda", region_name=region, config=settings)
        except botocore.exceptions.BotoCoreError as error:
            raise SettingsError(f"lambda://{name}: {error}; give ?region=...") from error
        self._name = name
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="lambda")

    async def send(self, body: bytes, timeout_s: float) -> bytes:
        async with limited(timeout_s):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._invoke, body)

    async def close(self) -> None:
        """End the threads, after waiting for abandoned calls that still run."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        self._client.close()

    def _invoke(self, body: bytes) -> bytes:
        try:
            answer = self._client.invoke(FunctionName=self._name, Payload=body)
            payload: bytes = answer["Payload"].read()
        except botocore.exceptions.ClientError as error:
            raise _refusal(error) from error
        except _TROUBLE as error:
            raise EndpointTroubleError(f"Lambda cannot be reached: {error}") from error
        except botocore.exceptions.BotoCoreError as error:
            raise ServerlessError(f"Lambda cannot be called: {error}") from error
        if "FunctionError" in answer:
            said = payload[:_SHOWN_CHARACTERS].decode(errors="replace")
            raise EndpointTroubleError(f"the function broke off: {said}")
        return payload


def open_transport(url: str, policy: CallPolicy) -> LambdaTransport:
    """Create the transport to a function; `region` is the only parameter of its URL."""
    parts = urlsplit(url)
    parameters = dict(parse_qsl(parts.query))
    region = parameters.pop("region", None)
    if parameters:
        raise SettingsError(f"lambda://{parts.netloc} takes region, not {min(parameters)!r}")
    return LambdaTransport(parts.netloc + parts.path.rstrip("/"), region, policy)


def _refusal(error: Any) -> ServerlessError:
    about: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    status = about.get("HTTPStatusCode", _SERVER_ERROR)
    if status != _TOO_MANY and status < _SERVER_ERROR:
        return ServerlessError(str(error))
    wait = about.get("HTTPHeaders", {}).get("retry-after", "")
    return EndpointTroubleError(str(error), float(wait) if wait.isdecimal() else 0.0)
