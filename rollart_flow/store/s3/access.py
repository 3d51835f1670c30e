"""Access to a bucket: one client of boto3, and the equal options for deltalake and polars.

boto3's own chain (environment, profile, role of the machine) finds credentials and addresses, so a
run can read what `aws s3 ls` can read. The invariant: a client is returned only after its bucket
has answered, so that wrong settings fail within seconds; later calls are repeated for minutes
(`store.away`).
"""

import os
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from rollart_flow.errors import MissingExtraError

try:
    import boto3  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]
    from botocore.exceptions import ClientError, NoCredentialsError  # type: ignore[import-untyped]
except ImportError as error:
    raise MissingExtraError(
        f"an s3:// store needs {error.name}; pip install 'rollart-flow[s3]'"
    ) from error

from rollart_flow.store.s3.failures import NO_BUCKET, as_os_errors, is_absent

_REACH = Config(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 2})
"""Timeouts of the first request to a bucket [s]."""
_WORK = Config(
    connect_timeout=5,
    read_timeout=20,
    retries={"mode": "standard", "total_max_attempts": 1},
    max_pool_connections=32,
)
"""Timeouts of all later requests, which `S3Blobs` repeats."""
_RETRIES, _RETRY_S = 100, 60
"""Retries of deltalake, limited by their time. Its default of ten retries ends after four to seven
seconds. `store.away` repeats its calls, since it does not retry every failure."""
_DEFAULT_REGION = "us-east-1"
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_creating = threading.Lock()


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket that has answered. Any thread may use its client."""

    name: str
    endpoint: str
    """URL of the server."""
    region: str
    client: Any = field(repr=False)
    credentials: Any = field(repr=False)

    def storage_options(self) -> dict[str, str]:
        """Options with which deltalake and polars reach the bucket; they contain secrets.

        boto3 renews a session token some minutes before it expires, so later calls may return
        other options.
        """
        keys = self.credentials.get_frozen_credentials()
        options = {
            "AWS_ACCESS_KEY_ID": keys.access_key,
            "AWS_SECRET_ACCESS_KEY": keys.secret_key,
            "AWS_REGION": self.region,
            "max_retries": str(_RETRIES),
            "retry_timeout": f"{_RETRY_S}s",
        }
        if keys.token:
            options["AWS_SESSION_TOKEN"] = keys.token
        address = urlsplit(self.endpoint)
        if not (address.hostname or "").endswith(_AMAZON):
            options["AWS_ENDPOINT_URL"] = self.endpoint
        if address.scheme == "http":
            options["AWS_ALLOW_HTTP"] = "true"
        return options


def bucket(name: str) -> Bucket:
    """The bucket with a name, under the current environment variables.

    Raises:
        OSError: the bucket cannot be reached; the message says in one line what to do.
    """
    environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    with _creating:
        return _reached(name, environment)


def credentials_source() -> str | None:
    """Source of boto3's credentials, such as `env` or `iam-role`, or None if there are none.

    Raises:
        OSError: a source of credentials cannot be read.
    """
    with as_os_errors("the server of credentials"):
        found = boto3.Session().get_credentials()
    return None if found is None else str(found.method)


@lru_cache(maxsize=16)
def _reached(name: str, environment: tuple[tuple[str, str], ...]) -> Bucket:
    """Connect to a bucket. `environment` is part of the cache's key, as boto3 reads it."""
    endpoint = "the server"
    with as_os_errors(endpoint):
        session = boto3.Session()
        credentials = session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        region = session.region_name or _DEFAULT_REGION
        asking = session.client("s3", region_name=region, config=_REACH)
        endpoint = asking.meta.endpoint_url
    with as_os_errors(endpoint):
        try:
            answer = asking.head_bucket(Bucket=name)
        except ClientError as error:
            if is_absent(error):
                raise OSError(NO_BUCKET) from error
            raise
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        region = headers.get("x-amz-bucket-region", region)
        client = session.client("s3", region_name=region, config=_WORK)
    return Bucket(name, client.meta.endpoint_url, region, client, credentials)
