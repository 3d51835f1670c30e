"""Verifiers of domains in processes of their own, which are killed at a time limit.

The invariant: no call lasts longer than its limit, and none raises anything but
EnvironmentFailedError and EnvironmentTimeoutError; the next call starts anew after either.
"""

from pathlib import Path
from typing import Any

from rollart_flow.control.rollout.guarded_env import START_S
from rollart_flow.envs.base import Domain
from rollart_flow.envs.process import environ_of, opening
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError
from rollart_flow.isolation.process import Isolated, IsolatedError
from rollart_flow.timeouts import timeout
from rollart_flow.types.verdict_checks import checked_verdicts
from rollart_flow.types.verdicts import Judgement

_HANDLER = "rollart_flow.checking.judge_handler:JudgeHandler"


class DomainJudge:
    """`Domain.judge` of one domain in one process; one call at a time.

    Args:
        domain: a domain with a verifier.
        timeout_s: limit of each call [s].
        source: pipeline file with the domain's class, where it cannot be imported by name.
    """

    def __init__(self, domain: Domain, timeout_s: float, source: Path | None) -> None:
        self._domain = domain
        self._timeout_s = timeout_s
        self._source = source
        self._process: Isolated | None = None

    async def judge(self, task: str, diff: str) -> Judgement:
        """Judge the change of files that an attempt left.

        Raises:
            EnvironmentFailedError: the verifier raised, or gave no judgement.
            EnvironmentTimeoutError: it took too long, and was killed.
        """
        try:
            if self._process is None:
                await self._start()
            found = await self._call({"judge": [task, diff]}, self._timeout_s)
        except IsolatedError as error:
            raise EnvironmentFailedError(f"{self._domain.name}: {error}") from error
        return Judgement(
            reward=found["reward"],
            success=found["success"],
            verdicts=checked_verdicts(found["verdicts"], "verdicts"),
            verifier=found["verifier"],
        )

    async def close(self) -> None:
        """End the process. May be called twice."""
        process, self._process = self._process, None
        if process is not None:
            await process.kill()

    async def _start(self) -> None:
        self._process = await Isolated.start(_HANDLER, environ_of(self._domain))
        await self._call({"open": opening(self._domain, self._source)}, START_S)

    async def _call(self, request: dict[str, object], limit_s: float) -> Any:
        assert self._process is not None, "the process is started"
        try:
            async with timeout(limit_s):
                return await self._process.call(request)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise EnvironmentTimeoutError(
                    f"{self._domain.name}: no judgement within {limit_s:g} s; killed"
                ) from error
            raise
