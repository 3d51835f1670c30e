"""CaptureSession: the calls of one captured agent, and the branches that they make.

The invariants: a token that was sampled is an action in exactly one row, whether its client got it
or not; what a row has is what was sent to the engine and what the engine returned; a call that was
accepted is recorded, whatever its client does.
"""

import asyncio
from collections.abc import Callable

from rollart_flow.control.environment import ChatCodec
from rollart_flow.control.inference.llm_proxy import FirstToken, LLMProxy
from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.rollout.chain_turn import ChainTurn
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.gateway.core.answers import answer_of, control_answer
from rollart_flow.gateway.core.call_ids import mint_answer_id
from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.classify import CallTraits, classify, traits_of
from rollart_flow.gateway.core.describing import describe_outcome, describe_request, exchange_of
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.gateway.core.forest import Forest
from rollart_flow.gateway.core.prompts import BudgetSpentError, PlacedCall, PromptBuilder
from rollart_flow.gateway.core.recording import record
from rollart_flow.gateway.core.retries import CallUnderWay, Retries
from rollart_flow.gateway.core.rows import Rows, SessionRows, why_withheld
from rollart_flow.gateway.core.sampling import EngineCalls
from rollart_flow.gateway.core.volatile import VolatileSpans
from rollart_flow.text import counted, one_line
from rollart_flow.types import (
    Assignment,
    AttemptLimits,
    FinishReason,
    GenerationRequest,
)

BUDGET_TEXT = "The budget of this task is used up. Stop here."
"""Answer to calls beyond the limits of a session."""


class CaptureSession:
    """The calls of one captured agent.

    Args:
        assignment: the attempt; its sampling is what is sampled with, whatever a client asks for.
        codec: codec of the policy.
        proxy: generates the answers.
        limits: limits of the attempt; `context_tokens` is the size of the context.
        capture: limits of the session.
        name: unique name of the run of the attempt, for ids of requests and minted ids.
        on_first: called once, with the version of the first sampled token.
        placement: as `GenerationRequest.placement`, for calls that an engine may share a prefix of
            with other attempts of their group.
    """

    def __init__(
        self,
        assignment: Assignment,
        codec: ChatCodec,
        proxy: LLMProxy,
        limits: AttemptLimits,
        capture: CaptureLimits,
        *,
        name: str,
        on_first: FirstToken | None = None,
        placement: int | None = None,
    ) -> None:
        self.exchanges: list[Exchange] = []
        """Calls in the order of their arrival; of those that got no answer of the policy, no more
        than `CaptureLimits.max_calls`."""
        self._codec = codec
        self._engine = EngineCalls(assignment, proxy, name, on_first, placement)
        self._limits = limits
        self._capture = capture
        self._name = name
        self._forest = Forest()
        self._prompts = PromptBuilder(codec, limits, self._forest)
        self._volatile = VolatileSpans(capture.volatile)
        self._retries = Retries(repeats_lost=capture.repeats_lost)
        self._rows = SessionRows(per_request=capture.per_request)
        self._taken: set[int] = set()
        """Numbers of the calls that were taken."""
        self._under_way: dict[int, CallUnderWay] = {}
        self._placed: dict[int, CallUnderWay] = {}
        """Calls whose answers are sampled, by number."""
        self._traits: dict[int, CallTraits] = {}
        self._fruitless = 0
        """Calls that got no answer of the policy."""
        self._text: str | None = None
        """Answer to every further call; None while the policy answers."""
        self._sealed = False

    async def answer(self, call: ModelCall) -> ModelAnswer:
        """Answer a call; a retry joins the call that is under way, or gets the stored answer.

        If the caller is cancelled, the call goes on, and a retry gets its answer.

        Raises:
            CallRefusedError: the call gets no answer.
        """
        self._check_open()
        under_way = self._retries.known(call)
        if under_way is None:
            under_way = self._begin(self._volatile.without(call))
            self._retries.add(call, under_way)
        with waiting(f"answer({self._name}/{under_way.exchange.number})"):
            return await under_way.answer()

    def unread(self, call: ModelCall, *, sent: bool) -> None:
        """Take note that an answer did not reach its client, or may not have; see `Retries`."""
        self._retries.unread(call, sent=sent)

    async def count(self, call: ModelCall) -> int:
        """Return the number of tokens of a call's prompt, without effect on the session.

        Raises:
            CallRefusedError: the messages cannot be rendered.
        """
        self._check_open()
        return self._prompts.count(self._volatile.without(call))

    def finish(self, text: str) -> None:
        """Answer all further calls with a text of the gateway's own, so that the agent ends.

        What is under way is aborted: its sampled tokens are kept, its callers get the text.
        """
        if self._text is None:
            self._text = text
        self._engine.over = True
        for number in self._under_way:
            self._engine.abort(number)

    async def seal(self) -> None:
        """End the session: wait for what is under way to be recorded, and refuse further calls."""
        self._sealed = True
        while self._under_way:
            with waiting(f"seal({self._name})"):
                await asyncio.wait([each.outcome for each in self._under_way.values()])
        self._classify()

    def rows(self, trajectory_id: str) -> Rows:
        """Return the record of each branch of a sealed session, with the fields of its row.

        Args:
            trajectory_id: id of the first branch.
        """
        rows = SessionRows(per_request=self._capture.per_request)
        found = self._take(rows, trajectory_id, lambda turn: True)
        return found or [(Recorder(), {"trajectory_id": trajectory_id, "branch": 0})]

    def take(self, trajectory_id: str) -> tuple[Rows, list[Exchange]]:
        """Return the rows that no take before has, and their calls; the session may go on.

        A turn has a row once its client has the answer, or never will; in a sealed session all
        have. Calls without a token come with the next rows, or after the end of the session.
        """
        self._classify()
        over = self._sealed and not self._under_way
        calls, parents = self._placed, {each.parent for each in self._traits.values()}
        rows = self._take(
            self._rows,
            trajectory_id,
            lambda turn: over or calls[turn.number].settled_by(parents),
        )
        ended = [each for each in self.exchanges if each.number not in self._taken
                 and (each.branch is not None or each.fruitless)]  # fmt: skip
        if not rows and not over:
            return [], []
        self._taken.update(each.number for each in ended)
        return rows, ended

    def _take(
        self, rows: SessionRows, trajectory_id: str, settled: Callable[[ChainTurn], bool]
    ) -> Rows:
        branches = self._prompts.compared()
        parents = {each.parent for each in self._traits.values()}
        withheld = why_withheld(self._placed, parents, self._capture.trained)
        return rows.take(branches, self.exchanges, trajectory_id, withheld, settled)

    def _classify(self) -> None:
        """Tell the kinds of the calls that were not taken, by what is known now."""
        for number, kind in classify([*self._traits.values()]).items():
            if number not in self._taken:
                self.exchanges[number].kind = kind

    def _begin(self, call: ModelCall) -> CallUnderWay:
        """Place a call, and begin to answer it."""
        exchange = exchange_of(call, len(self.exchanges), _now())
        outcome: asyncio.Future[ModelAnswer | CallRefusedError]
        try:
            self._check_capacity()
            placed = self._prompts.place(call, exchange.number)
        except (CallRefusedError, BudgetSpentError) as error:
            outcome = asyncio.get_running_loop().create_future()
            outcome.set_result(self._without_policy(call, exchange, error))
            return CallUnderWay(exchange, outcome)
        self.exchanges.append(exchange)
        describe_request(exchange, call, placed)
        turn = placed.found.turn
        if turn is not None:
            self._retries.shown(self._placed[turn.exchange.number])
        self._traits[exchange.number] = traits_of(
            call, exchange.number, exchange.parent, root=turn is None
        )
        placed.branch.busy = True
        recorder = placed.branch.recorder
        room = self._limits.context_tokens - len(recorder)
        left = self._capture.max_tokens - self._engine.tokens
        most = min(room, left, room if call.max_tokens is None else max(call.max_tokens, 1))
        request = self._engine.request(exchange, recorder.token_ids, recorder.images, most)
        outcome = asyncio.ensure_future(self._run(call, exchange, placed, request))
        under_way = CallUnderWay(exchange, outcome)
        self._under_way[exchange.number] = self._placed[exchange.number] = under_way
        return under_way

    async def _run(
        self, call: ModelCall, exchange: Exchange, placed: PlacedCall, request: GenerationRequest
    ) -> ModelAnswer | CallRefusedError:
        """Sample the answer to a placed call, and record it."""
        try:
            found = await self._sampled(call, exchange, placed, request)
        except Exception as error:  # noqa: BLE001  a bad capture is a row, not a crash
            said = one_line(f"recording call {exchange.number} raised {error!r}")
            placed.branch.last = None
            found = CallRefusedError(Refusal.ENGINE, said)
        finally:
            placed.branch.busy = False
            self._under_way.pop(exchange.number, None)
            exchange.ended = _now()
        describe_outcome(exchange, found)
        return found

    async def _sampled(
        self, call: ModelCall, exchange: Exchange, placed: PlacedCall, request: GenerationRequest
    ) -> ModelAnswer | CallRefusedError:
        generation, error = await self._engine.generate(request, exchange)
        seconds = _now() - (exchange.generating or exchange.arrived)
        recorded = record(placed.branch, exchange, request.prompt_ids, generation, seconds)
        if self._text is not None and generation.finish_reason is FinishReason.ABORT:
            return control_answer(self._text, mint_answer_id(self._name, exchange.number))
        if error is not None:
            return CallRefusedError(Refusal.ENGINE, error)
        if recorded is None:
            tokens, most = len(request.prompt_ids), self._limits.context_tokens
            said = f"the engine's context has no room after a prompt of {counted(tokens, 'token')}"
            return CallRefusedError(Refusal.OVERFLOW, said, tokens=tokens, limit=most)
        turn, parsed = recorded
        minted = answer_of(
            parsed, generation, call, exchange,
            name=self._name, codec=self._codec, forest=self._forest,
        )  # fmt: skip
        action = minted.answer.action
        captured = placed.branch.answered(exchange, turn, action, minted.call_ids)
        self._forest.add(captured, call, placed.found, minted.ids)
        if not action.tool_calls:
            self._traits[exchange.number].says = action.text
        return minted.answer

    def _check_open(self) -> None:
        if self._sealed:
            raise CallRefusedError(Refusal.SEALED, "the session has ended")

    def _check_capacity(self) -> None:
        """Raise if the session takes no call, now or ever."""
        capture = self._capture
        spent = len(self._placed) >= capture.max_calls or self._engine.tokens >= capture.max_tokens
        if self._text is not None or spent:
            raise BudgetSpentError(self._text or BUDGET_TEXT)
        if len(self._under_way) >= capture.max_under_way:
            said = f"{len(self._under_way)} calls are under way, the most at once; try again"
            raise CallRefusedError(Refusal.BUSY, said, limit=capture.max_under_way)

    def _without_policy(
        self, call: ModelCall, exchange: Exchange, error: CallRefusedError | BudgetSpentError
    ) -> ModelAnswer | CallRefusedError:
        """Return the outcome of a call that the policy does not answer."""
        found: ModelAnswer | CallRefusedError
        if isinstance(error, CallRefusedError):
            found = error
        else:
            purpose = f"control{self._fruitless}"
            found = control_answer(str(error), mint_answer_id(self._name, exchange.number, purpose))
        if self._fruitless < self._capture.max_calls:
            self.exchanges.append(exchange)
            describe_request(exchange, call, None)
            describe_outcome(exchange, found)
        self._fruitless += 1
        return found


def _now() -> float:
    """Return the time of the running loop [s]."""
    return asyncio.get_running_loop().time()
