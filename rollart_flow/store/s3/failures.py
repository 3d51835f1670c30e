"""Conversion of boto3's errors to OSErrors that say what to do; no other module reads its codes.

A failure that may pass (no connection, no answer, a busy or broken server) is a ConnectionError.
The invariant: no message holds a credential. Answers of S3 name buckets and objects only.
"""

import builtins
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from boto3.exceptions import (  # type: ignore[import-untyped]
    Boto3Error,
    RetriesExceededError,
    S3UploadFailedError,
)
from botocore.exceptions import (  # type: ignore[import-untyped]
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)

NO_BUCKET = "there is no such bucket; make it first, or name another one in --store"
_LOST = ("412", "PreconditionFailed", "409", "ConditionalRequestConflict")
_ABSENT = ("404", "NoSuchKey", "NotFound")
_BUSY = (
    "503", "SlowDown", "ServiceUnavailable", "500", "InternalError", "RequestTimeout", "502", "504",
    "429", "TooManyRequests", "Throttling", "ThrottlingException",
)  # fmt: skip
_SILENT = (
    ConnectionError, HTTPClientError, IncompleteReadError, RetriesExceededError, S3UploadFailedError
)  # fmt: skip
_ADVICE = {
    "NoSuchBucket": NO_BUCKET,
    "403": "no permission; the credentials need to list, read, write and delete in the bucket",
    "400": "the request was refused; look at the credentials, their session token and the region",
    "301": "the bucket is in another region; set AWS_REGION to its own",
    "SignatureDoesNotMatch": "the secret access key is wrong; set AWS_SECRET_ACCESS_KEY again",
    "InvalidAccessKeyId": "there is no such access key; set AWS_ACCESS_KEY_ID again",
    "ExpiredToken": "the session token has expired; log in again",
    "RequestTimeTooSkewed": "the clock of this machine is wrong; correct it",
}
_ADVICE |= dict.fromkeys(("AccessDenied", "AllAccessDisabled"), _ADVICE["403"])
_ADVICE |= dict.fromkeys(_BUSY, "the server is too busy or broken")
_CREDENTIALS = (
    "no S3 credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
)


def is_lost(error: ClientError) -> bool:
    """Whether a conditional put was refused because another writer was first."""
    return _code(error) in _LOST


def is_absent(error: ClientError) -> bool:
    """Whether the object does not exist."""
    return _code(error) in _ABSENT


def is_busy(code: str) -> bool:
    """Whether a server that answers with this code may do what was asked later."""
    return code in _BUSY


@contextmanager
def as_os_errors(endpoint: str) -> Iterator[None]:
    """Convert errors of boto3.

    Args:
        endpoint: URL of the server, named in the error if the server does not answer.

    Raises:
        ConnectionError: a failure that may pass.
        OSError: another one; one line that says what to do.
    """
    try:
        yield
    except ClientError as error:
        kind = builtins.ConnectionError if is_busy(_code(error)) else OSError
        raise kind(_answered(error)) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise OSError(_CREDENTIALS) from error
    except ProfileNotFound as error:
        raise OSError(f"{error}; set AWS_PROFILE to an existing one") from error
    except _SILENT as error:
        raise builtins.ConnectionError(
            f"{endpoint} does not answer ({type(error).__name__}); "
            "look at AWS_ENDPOINT_URL_S3 and the network"
        ) from error
    except (BotoCoreError, Boto3Error) as error:
        raise OSError(" ".join(str(error).split())) from error


def _answered(error: ClientError) -> str:
    code = _code(error)
    if code in _ADVICE:
        return _ADVICE[code]
    answer: Mapping[str, Any] = error.response.get("Error", {})
    return f"S3 answers {code}: {answer.get('Message', 'no reason')}"


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
