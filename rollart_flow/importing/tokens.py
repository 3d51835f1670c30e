"""Token chains of records that state their tokens, as those of `rollart export --what tokens` do.

Invariant: the tokens, and which of them are actions, are those of the record; nothing is encoded
again. Logprobs that the record lacks are NaN.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.importing.records import BadRecordError
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.text import storable
from rollart_flow.types import Action, FinishReason, Generation

VERSION = 0
"""Policy version of the actions: that of the policy that the import names."""
_IDS = ("token_ids", "input_ids")
"""Names of the column of tokens."""
_MASKS = ("action_mask", "loss_mask", "assistant_masks", "completion_mask")
"""Names of the column that says which tokens are trained on."""
_IGNORED = -100
"""Label of a token that is not trained on."""


@dataclass(frozen=True, slots=True)
class TokenChain:
    """Tokens of a record, up to its last action."""

    token_ids: NDArray[np.int64]
    """[tokens]"""
    action_mask: NDArray[np.bool_]
    """[tokens]"""
    logprobs: NDArray[np.float64]
    """Behavior logprobs, NaN where they are unknown [tokens]."""


def states_tokens(record: Mapping[str, Any]) -> bool:
    """Whether a record states tokens."""
    return _name(record, _IDS) is not None


def token_chain(record: Mapping[str, Any]) -> TokenChain:
    """Return the tokens of a record.

    Raises:
        BadRecordError: a column is missing, is no list of numbers, or has another length.
    """
    name = _name(record, _IDS) or _IDS[0]
    ids, actions = _column(record, name), _actions(record)
    if ids.dtype.kind not in "iu" or len(ids) == 0:
        raise BadRecordError(f"{name} is not a list of whole numbers")
    logprobs = _logprobs(record, len(ids))
    for what, values in (("the mask", actions), ("logprobs", logprobs)):
        if len(values) != len(ids):
            raise BadRecordError(f"{what} has {len(values)} values for {len(ids)} tokens")
    if not actions.any():
        raise BadRecordError("no token of it is an action")
    if actions[0]:
        raise BadRecordError("its first token is an action; a chain begins with an observation")
    end = int(np.flatnonzero(actions)[-1]) + 1
    return TokenChain(ids[:end].astype(np.int64), actions[:end], logprobs[:end])


def _actions(record: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return which tokens are trained on [tokens], by a mask or by labels."""
    name = _name(record, _MASKS)
    if name is None:
        if record.get("labels") is None:
            raise BadRecordError(f"it has no {_MASKS[0]}, {_MASKS[1]} or labels")
        labelled: NDArray[np.bool_] = _column(record, "labels") != _IGNORED
        return labelled
    mask = _column(record, name)
    if not np.isin(mask, (0, 1)).all():
        raise BadRecordError(f"{name} is not a list of true and false")
    return mask.astype(bool)


def _logprobs(record: Mapping[str, Any], tokens: int) -> NDArray[np.float64]:
    """Return behavior logprobs; JSON has null for one that is unknown."""
    given = record.get("logprobs")
    if given is None:
        return np.full(tokens, math.nan)
    if isinstance(given, list):
        given = [math.nan if value is None else value for value in given]
    found = _column({"logprobs": given}, "logprobs").astype(np.float64)
    if (found > 0).any() or np.isinf(found).any():
        raise BadRecordError("logprobs has a value that is above 0 or infinite")
    return found


def _name(record: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if record.get(name) is not None), None)


def _column(record: Mapping[str, Any], name: str) -> NDArray[Any]:
    given = record.get(name)
    values = np.asarray(given if isinstance(given, list) else "")
    if values.ndim != 1 or (len(values) and values.dtype.kind not in "biuf"):
        raise BadRecordError(f"{name} is not a list of numbers")
    return values


def record_tokens(recorder: Recorder, chain: TokenChain, codec: TextCodec) -> None:
    """Record a chain, with a turn for each span of actions.

    Raises:
        BadRecordError: the policy has no such token, or it stands for an image.
    """
    _check_ids(chain.token_ids, codec)
    changes = np.flatnonzero(np.diff(chain.action_mask)) + 1
    bounds = [0, *changes.tolist(), len(chain.token_ids)]
    spans = list(pairwise(bounds))  # observed, then sampled, and so on
    for (start, begun), (_, end) in zip(spans[::2], spans[1::2], strict=True):
        shown, said = (chain.token_ids[a:b].tolist() for a, b in ((start, begun), (begun, end)))
        recorder.observe(storable(codec.decode(shown)), shown)
        stopped = said[-1] in codec.stop_token_ids
        generation = Generation(
            tuple(said),
            tuple(chain.logprobs[begun:end].tolist()),
            (VERSION,) * len(said),
            FinishReason.STOP if stopped else FinishReason.LENGTH,
        )
        recorder.act(generation, Action(storable(codec.decode(said))), 0.0)
        recorder.end_turn()


def _check_ids(token_ids: NDArray[np.int64], codec: TextCodec) -> None:
    least, largest = int(token_ids.min()), int(token_ids.max())
    if least < 0 or largest >= codec.vocab_size:
        wrong = least if least < 0 else largest
        raise BadRecordError(f"the policy has {codec.vocab_size} tokens, and none is {wrong}")
    if codec.pictures is not None and (token_ids == codec.pictures.placeholder).any():
        raise BadRecordError("a token of it stands for an image; import the messages instead")
