"""Calls to a store whose server may be away for some time: repeated, with a limit of minutes.

Every request of a run to S3 goes through `repeated`, whether boto3, deltalake or polars makes it.
So a run waits for a server that restarts; its processes name what they wait for (`rollart show RUN
--waits`), and outages that passed become events of kind `retry`. Local folders are not concerned.
"""

import os
import re
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from rollart_flow.retries import RetryPolicy, retried
from rollart_flow.types import Retried

T = TypeVar("T")
LIMIT_VARIABLE = "ROLLART_S3_AWAY_S"
"""Environment variable with the seconds after which a server that is away fails a run."""
_LIMIT_S = 300.0
_NOTED_S = 5.0
"""Shortest outage that becomes an event [s]."""
_LOST_REQUEST = re.compile(r"Generic S3 error|error sending request|HTTP error")
_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d|status client error|InvalidAccessKeyId")
_passed: deque[Retried] = deque(maxlen=20)
"""Outages that passed, and that no event says yet."""


def repeated(doing: str, call: Callable[[], T], policy: RetryPolicy | None = None) -> T:
    """Return the result of a call, which is repeated while it raises a ConnectionError.

    Args:
        doing: description of the call.
        call: the call, which has the same effect when it is repeated.
        policy: for how long it is repeated; by default as long as the environment says.

    Raises:
        ConnectionError: the server was away for too long; the message has the number of attempts.
    """
    policy = policy or RetryPolicy(limit_s=float(os.environ.get(LIMIT_VARIABLE, _LIMIT_S)))
    return retried(doing, call, ConnectionError, _note, policy)


def repeated_query(doing: str, call: Callable[[], T]) -> T:
    """Return the result of a call of deltalake or polars, as `repeated`.

    Both report what their client of S3 says in errors of many classes.
    """

    def asked() -> T:
        try:
            return call()
        except ConnectionError:
            raise
        except Exception as error:  # of any class, see above
            said = str(error)
            if _LOST_REQUEST.search(said) and not _REFUSED.search(said):
                raise ConnectionError(said.split("\n\n", 1)[0]) from error
            raise

    return repeated(doing, asked)


def passed_outages() -> tuple[Retried, ...]:
    """Return the outages that calls of this process have waited for, since the last call."""
    return tuple(_passed.popleft() for _ in range(len(_passed)))


def _note(outage: Retried) -> None:
    if outage.seconds >= _NOTED_S:
        _passed.append(outage)
