"""`Policy`: the model that a pipeline trains, as frozen settings. Loads no torch.

A policy is the feedback edge of the pipeline: rollout reads its versions and train writes them.
Version 0 is the folder that `version_zero.materialize` writes, a function of the settings alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict, Unpack

from rollart_flow.errors import SettingsError
from rollart_flow.models.architectures import AUTO, IMPLEMENTATIONS, foreign, placeholder_of
from rollart_flow.models.repositories import holds_model, model_folder

DTYPES = ("float32", "bfloat16")
HISTORIES = ("keep", "branch")
DEVICES = ("cpu", "cuda")
_RENDERED = {"messages", "tools", "documents", "add_generation_prompt", "strftime_now"}
"""Variables of a chat template that each rendering has."""
_ROTATED = 8
"""Smallest width of an attention head whose positions have a time, a height and a width."""
WORDS = ("left", "down", "right", "up")
"""Words that the tokenizer of a tiny policy encodes as one token each by default."""


class _Fields(TypedDict, total=False):
    """Types of the fields that any policy has, as keywords; defaults and texts are `Policy`'s."""

    warm_start: int
    engine: str
    dtype: str
    device: str
    eager: bool
    max_batch: int
    chat_format: str
    template_options: Mapping[str, object]
    implementation: str
    history: str


class _TinyFields(_Fields, total=False):
    """Types of the fields of a model made from scratch."""

    hidden: int
    layers: int
    heads: int
    images: bool
    seed: int
    max_context: int


@dataclass(frozen=True, slots=True)
class Policy:
    """A model and its tokenizer; build it with `Policy.tiny` or `Policy.from_pretrained`.

    Every field is JSON-serializable, and `Policy(**dataclasses.asdict(policy)) == policy`, also
    after a round trip through JSON.
    """

    path: str | None = None
    """Folder of a pretrained model, or the id of a repository; None for a small model made from
    scratch."""
    revision: str = "main"
    """Branch, tag or commit of a repository."""
    hidden: int = 64
    """Width of a model made from scratch; attention has the proportions of Qwen3-0.6B."""
    layers: int = 2
    heads: int = 4
    """Number of attention heads; half as many for keys and values, each 2 x hidden / heads wide, or
    hidden / heads in a model that takes images."""
    words: tuple[str, ...] = WORDS
    """Words that a tokenizer made from scratch keeps whole; other text is split into characters."""
    images: bool = False
    """Whether a model made from scratch takes images: a small Qwen2.5-VL in place of a Qwen3."""
    seed: int = 0
    """Seed of fresh weights."""
    warm_start: int = 0
    """Supervised steps on well-formed random actions before version 0; 0 disables it."""
    engine: str = "embedded"
    """Name of the inference engine that serves the policy."""
    dtype: str = AUTO
    """Dtype that the engine computes in; "auto" is float32 on a CPU and bfloat16 on a GPU.

    On a GPU the embedded trainer's passes use this dtype too, over float32 weights.
    """
    device: str = "cpu"
    """Device of the embedded engine and trainer: cpu or cuda.

    vLLM and trainers with several ranks ignore this setting and use the GPUs that they see.
    """
    eager: bool = False
    """Whether the embedded engine decodes operator by operator on a GPU too.

    Otherwise the engine captures a step as a CUDA graph, once for each size.
    """
    max_context: int = 512
    """Longest token chain of a trajectory; a longer trajectory is truncated."""
    max_batch: int = 64
    """Number of requests that one engine decodes together; further requests wait."""
    chat_format: str = AUTO
    """Format in which the policy writes thinking and calls of tools; "auto" finds it from the chat
    template. The names are those of `models.chat.formats`."""
    template_options: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Variables of the chat template, such as {"enable_thinking": False}."""
    implementation: str = AUTO
    """The model code of the trainer: "transformers", or "auto" for this library's own where it
    implements the architecture."""
    history: str = "keep"
    """Treatment of earlier turns that the chat template changes, as where it drops thinking:
    "keep" keeps their tokens in the chain; "branch" begins a branch with what it renders."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))  # a list after JSON
        for name, low in (
            ("hidden", 2),
            ("layers", 1),
            ("heads", 1),
            ("seed", 0),
            ("warm_start", 0),
            ("max_context", 8),
            ("max_batch", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise SettingsError(
                    f"policy: {name} must be a whole number from {low}, not {value!r}"
                )
        if self.hidden % self.heads:
            raise SettingsError(
                f"policy: hidden ({self.hidden}) must be a multiple of heads ({self.heads})"
            )
        for name, known in (
            ("dtype", (*DTYPES, AUTO)),
            ("device", DEVICES),
            ("implementation", IMPLEMENTATIONS),
            ("history", HISTORIES),
        ):
            if (text := getattr(self, name)) not in known:
                one = ", ".join(known)
                raise SettingsError(f"policy: {name} must be one of {one}, not {text!r}")
        for name in ("eager", "images"):
            if not isinstance(value := getattr(self, name), bool):
                raise SettingsError(f"policy: {name} must be true or false, not {value!r}")
        self._check_images()
        for name, what in (("engine", "an engine"), ("revision", "a branch, tag or commit")):
            if not getattr(self, name) or not isinstance(getattr(self, name), str):
                raise SettingsError(f"policy: {name} must be the name of {what}")
        self._check_options()
        for word in self.words:
            if not isinstance(word, str) or not word.isascii() or not word.isalnum():
                raise SettingsError(
                    f"policy: words must be made of ASCII letters and digits, not {word!r}"
                )

    def _check_images(self) -> None:
        if self.images and self.path is not None:
            raise SettingsError("policy: images is for a model made from scratch; leave it away")
        if self.images and self.hidden % (_ROTATED * self.heads):
            raise SettingsError(
                f"policy: hidden ({self.hidden}) must be a multiple of {_ROTATED} x heads "
                f"({self.heads}) for a model that takes images"
            )

    def _check_options(self) -> None:
        try:
            again = json.loads(json.dumps(self.template_options))
        except (TypeError, ValueError):
            again = None
        if again != self.template_options or not isinstance(again, dict):
            raise SettingsError("policy: template_options must be an object of JSON values")
        for name in _RENDERED & again.keys():
            raise SettingsError(f"policy: template_options must not have {name!r}, a run sets it")

    @property
    def computes_in(self) -> str:
        """The dtype that was chosen, or the one that "auto" stands for."""
        if self.dtype != AUTO:
            return self.dtype
        return "bfloat16" if self.device == "cuda" else "float32"

    @property
    def head_dim(self) -> int:
        """Width of an attention head of a model made from scratch."""
        return (1 if self.images else 2) * self.hidden // self.heads

    @property
    def key_value_heads(self) -> int:
        """Heads for keys and values of a model made from scratch."""
        return self.heads if self.heads % 2 else self.heads // 2

    @property
    def intermediate(self) -> int:
        """Width between the matrices of the feed-forward blocks of a model made from scratch."""
        return 4 * self.hidden

    @property
    def takes_images(self) -> bool:
        """Whether the model takes images."""
        return self.images or placeholder_of(self.path) is not None

    @property
    def foreign(self) -> str | None:
        """Name of a part of the model that this library does not implement; None if it does all."""
        return "a vision tower" if self.images else foreign(self.path)

    @staticmethod
    def tiny(*, words: Iterable[str] = WORDS, **fields: Unpack[_TinyFields]) -> Policy:
        """Return a small model with fresh weights and a character-level tokenizer.

        It is a Qwen3, or with `images` a Qwen2.5-VL. Arguments are all fields but `path`.

        Raises:
            SettingsError: a value is out of range.
        """
        return Policy(words=tuple(words), **fields)

    @staticmethod
    def from_pretrained(
        path: str | Path,
        *,
        revision: str = "main",
        max_context: int = 2048,
        **fields: Unpack[_Fields],
    ) -> Policy:
        """Return a causal language model of Hugging Face, with its tokenizer and chat template.

        `path` is a local folder, or the id of a repository, which is downloaded into the cache of
        huggingface_hub unless it is there. Other arguments are the fields that do not describe a
        model made from scratch. This call does not look for the model; `located` does, when the
        pipeline is planned or run.

        Raises:
            SettingsError: a value is out of range.
        """
        return Policy(path=str(path), revision=revision, max_context=max_context, **fields)

    def located(self) -> Policy:
        """Return the policy with the folder of its model on this machine as its path.

        Raises:
            SettingsError: there is no such model, or it cannot be downloaded.
        """
        if self.path is None:
            return self
        return replace(self, path=str(model_folder(self.path, self.revision)))

    @property
    def is_located(self) -> bool:
        """Whether there is a model at `path`, or none is needed."""
        return self.path is None or holds_model(self.path)
