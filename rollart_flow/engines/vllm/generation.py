"""Requests to vLLM, with or without a prompt that another engine has computed.

The invariant: such a prompt is used only under the version that computed it. A prompt of another
version is declined. A prompt that is being fetched while the engine is suspended is returned, since
vLLM could not drop it, and the request is submitted again. The holding engine is notified in each
case.
"""

from collections.abc import Iterable
from typing import Any

from rollart_flow.engines.base import EnginePhase
from rollart_flow.engines.requests import refused
from rollart_flow.engines.vllm import prefixes
from rollart_flow.engines.vllm.settings import VllmSettings, lora_request
from rollart_flow.engines.vllm.stream import VllmStream, parameters
from rollart_flow.errors import TemplateRefusedError
from rollart_flow.models.pictures import PictureProcessor
from rollart_flow.types import FinishReason, GenerationRequest, Prefix


class VllmGeneration:
    """Submits the requests of one engine to vLLM; tokens are sampled under `version`.

    `limits` are the longest chain in tokens, and the number of token ids; `pictures` is the image
    processor of a model that takes images.
    """

    def __init__(
        self,
        llm: Any,
        limits: tuple[int, int],
        settings: VllmSettings,
        version: int,
        pictures: PictureProcessor | None = None,
    ) -> None:
        self.llm: Any = llm
        self._pictures = pictures
        self.version = version
        self.fetches = True
        """Whether a prompt fetched now would be used under the current version."""
        self._context, self._vocabulary = limits
        self._phase = settings.phase
        self.lora = lora_request(settings.lora)
        """The adapter that requests are served with, or None."""

    async def answer(self, stream: VllmStream) -> None:
        """Deliver a whole answer; submit the request again after its prompt was returned."""
        request = stream.request
        if len(request.prompt_ids) == self._context:
            stream.end(FinishReason.LENGTH)
        elif request.prefill_only:
            await self._hold(stream)
        else:
            prefix = request.prefix
            wanted = self.fetches and not stream.unwanted
            if prefix is not None and not (wanted and prefix.version == self.version):
                # The engine that holds the prompt is told that it will not be fetched.
                await self.llm.notify_kv_transfer_request_rejected(
                    f"{request.request_id}/declined", prefixes.address(prefix)
                )
                prefix = None
            # No other task may run before vLLM has the request, or `stop_fetching` would miss it.
            await self._answer(stream, prefix)
            if stream.recalled:
                await self._answer(stream, None)

    async def stop_fetching(self, streams: Iterable[VllmStream]) -> None:
        """Take back the requests whose prompts vLLM may be fetching, and fetch no more until
        `fetches` is set."""
        self.fetches = False
        fetching = [stream for stream in streams if stream.fetching]
        for stream in fetching:
            stream.fetching, stream.recalled = False, True
        for stream in fetching:
            await self.llm.abort(stream.request.request_id)

    async def give_up(self, request_id: str) -> None:
        """Free the prompt of a request if the engine holds it; no engine will fetch it."""
        if self._phase is EnginePhase.PREFILL:
            await self.llm.collective_rpc("give_up_prefix", args=(request_id,))

    async def _answer(self, stream: VllmStream, prefix: Prefix | None) -> None:
        """Deliver tokens as they arrive, so that they carry the version being served."""
        request = stream.request
        if stream.unwanted:
            stream.end(FinishReason.ABORT)
            return
        asked = parameters(request, context=self._context, vocabulary=self._vocabulary)
        if prefix is not None:
            asked.extra_args = {"kv_transfer_params": prefixes.address(prefix)}
        stream.generating, stream.fetching, stream.recalled = True, prefix is not None, False
        prompt = self._prompt(request)
        answers = self.llm.generate(prompt, asked, request.request_id, lora_request=self.lora)
        async for output in answers:
            if request.images and output.prompt_token_ids != list(request.prompt_ids):
                raise refused(request, "vLLM expands its images to other tokens than the chain's")
            if not stream.recalled:
                stream.take(output.outputs[0], self.version)

    def _prompt(self, request: GenerationRequest) -> Any:
        """Return a prompt in the form that vLLM takes; it expands placeholders of images itself."""
        from vllm.inputs import TokensPrompt, tokens_input

        if not request.images:
            return tokens_input(list(request.prompt_ids))
        if self._pictures is None:
            raise refused(request, "the model takes no images")
        try:
            collapsed = self._pictures.collapse(request.prompt_ids, request.images)
        except TemplateRefusedError as error:
            raise refused(request, error.message) from error
        return TokensPrompt(
            prompt_token_ids=collapsed,
            multi_modal_data={"image": [image.opened() for image in request.images]},
            multi_modal_uuids={"image": [image.image_id for image in request.images]},
        )

    async def _hold(self, stream: VllmStream) -> None:
        request, asked = stream.request, prefixes.prefill_parameters()
        if stream.unwanted:
            stream.end(FinishReason.ABORT)
            return
        stream.generating = True
        prompt = self._prompt(request)
        answers = self.llm.generate(prompt, asked, request.request_id, lora_request=self.lora)
        async for output in answers:
            stream.hand_over(prefixes.held(output))
