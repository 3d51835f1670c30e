"""Sampling of the next token of every row in a batch, with its logprob.

The uniform number used for a sample is a hash of (engine seed, request id, position in the chain),
not the state of a generator. The invariant: the tokens of a request do not depend on the other
requests of the batch, beyond the rounding of their shared matrix products; and a request that
continues on another worker of the same seed continues the same random sequence.

A GPU uses the same uniform numbers and the same distribution. It sums probabilities as integers,
whose sum does not depend on the order, so that a sample is reproducible and a token of probability
zero contributes nothing. A CPU sums them in order, in double precision.
"""

from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from rollart_flow.errors import EngineError
from rollart_flow.models.cached_model import Int64Array
from rollart_flow.models.device import CPU
from rollart_flow.types import Sampling

_KEPT_BITS = 48
"""Bits of each uniform number; the product with a total near 1 stays below it in double
precision."""

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
Kept = dict[int, tuple[int, ...]]
"""Token ids that remain after top-p or top-k, by index in the batch."""


class Sampler:
    """The sampling settings of every cache row, and sampling over a selection of the rows."""

    def __init__(self, rows: int, vocab_size: int, seed: int, device: torch.device = CPU) -> None:
        """Args: `device` is the device of the logits."""
        self._seed = seed
        self._device = device
        self._vocab_size = vocab_size
        self._keys = np.zeros(rows, np.uint64)
        self._temperatures = np.ones(rows, np.float32)
        self._top_p = np.ones(rows, np.float32)
        self._top_k: Int64Array = np.zeros(rows, np.int64)
        self._greedy = np.zeros(rows, np.bool_)
        self._truncates = np.zeros(rows, np.bool_)
        self._restricted = np.zeros(rows, np.bool_)
        self._allowed: torch.Tensor | None = None
        """Additive mask of 0 or minus infinity, [rows, vocab_size]; created at first use."""

    def bind(self, row: int, request_id: str, sampling: Sampling) -> None:
        """Set the sampling settings of a row."""
        digest = blake2b(f"{self._seed}:{request_id}".encode(), digest_size=8).digest()
        self._keys[row] = int.from_bytes(digest, "little")
        self._greedy[row] = sampling.temperature == 0
        self._temperatures[row] = sampling.temperature or 1.0
        self._truncates[row] = sampling.truncates
        self._top_p[row] = sampling.top_p
        self._top_k[row] = sampling.top_k or self._vocab_size
        self._restricted[row] = bool(sampling.allowed_token_ids)
        if sampling.allowed_token_ids:
            if self._allowed is None:
                self._allowed = torch.zeros(len(self._keys), self._vocab_size, device=self._device)
            self._allowed[row] = float("-inf")
            allowed = self._there(np.array(sampling.allowed_token_ids, np.int64))
            self._allowed[row].index_fill_(0, allowed, 0.0)

    def move(self, rows: Int64Array, targets: Int64Array) -> None:
        """Copy the settings of some rows to others."""
        for table in (
            self._keys, self._temperatures, self._top_p, self._top_k, self._greedy,
            self._truncates, self._restricted,
        ):  # fmt: skip
            table[targets] = table[rows]
        if self._allowed is not None:
            self._allowed[self._there(targets)] = self._allowed[self._there(rows)]

    def select(self, rows: Int64Array) -> None:
        """Select the rows, in order, that the next samples are for."""
        self._chosen_keys = self._keys[rows]
        self._bias = self._allowed_bias(rows)
        self._scale = self._column(self._temperatures[rows], neutral=1.0)
        self._greedy_rows = self._column(self._greedy[rows], neutral=False)
        self._cut_rows = cut = np.flatnonzero(self._truncates[rows])
        self._cut = self._there(cut)
        self._cut_p = self._there(self._top_p[rows[cut]])[:, None]
        self._cut_k = self._there(self._top_k[rows[cut]])[:, None]

    def sample(
        self, logits: torch.Tensor, positions: Int64Array
    ) -> tuple[Int64Array, FloatArray, Kept]:
        """Sample one token for each selected row.

        Args:
            logits: float32 [rows, vocab_size], on the device; may be overwritten.
            positions: index of each row's new token in its chain.

        Returns:
            (tokens, logprobs, remaining token ids of the rows with top-p or top-k).

        Raises:
            EngineError: the logits are not finite.
        """
        logits = self._tempered(logits)
        kept: Kept = {}
        if len(self._cut_rows):
            logits, ids, keep = self._truncate(logits)
            kept = self._kept(ids, keep)
        uniforms = self._there(_uniforms(self._chosen_keys, positions))
        tokens, logprobs, mass = self._choose(logits, uniforms[:, None])
        if not np.isfinite(mass.cpu().numpy()).all():
            raise EngineError("the weights give logits that are not finite")
        return tokens.flatten().cpu().numpy(), logprobs.flatten().cpu().numpy(), kept

    def _tempered(self, logits: torch.Tensor) -> torch.Tensor:
        """Restrict the logits to allowed tokens and apply each row's temperature."""
        if self._bias is not None:
            logits = logits + self._bias
        return logits if self._scale is None else logits / self._scale

    def _choose(
        self, logits: torch.Tensor, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (tokens, logprobs, total probability), each [rows, 1]; the total is finite for
        valid logits."""
        logprobs = torch.log_softmax(logits, -1)
        cumulative, mass = cumulate(logprobs.exp(), whole=self._device != CPU)
        # the first token whose cumulative probability exceeds the number: its probability is not
        # zero
        below = (uniforms * cumulative[:, -1:]).to(cumulative.dtype)
        tokens = torch.searchsorted(cumulative, below, right=True)
        if self._greedy_rows is not None:
            tokens = torch.where(self._greedy_rows, logits.argmax(-1, keepdim=True), tokens)
        tokens = tokens.clamp_max(self._vocab_size - 1)  # needed only if numbers are not finite
        return tokens, logprobs.gather(-1, tokens), mass

    def _truncate(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Apply top-k, then top-p to the remaining tokens, as vLLM and transformers do.

        Returns:
            (logits, token ids of the truncated rows by descending probability, mask of the kept
            ids).
        """
        part = logits[self._cut]
        ordered, ids = part.sort(stable=True, dim=-1, descending=True)
        ranks = torch.arange(self._vocab_size, device=self._device)
        keep = (ranks < self._cut_k) & (ordered > float("-inf"))
        probabilities = ordered.softmax(-1) * keep
        before = probabilities.cumsum(-1, dtype=torch.float64) - probabilities
        enough = self._cut_p * probabilities.sum(-1, keepdim=True)
        keep &= (self._cut_p >= 1.0) | (before < enough)
        keep[:, 0] = True
        logits[self._cut] = part.masked_fill(
            torch.zeros_like(keep).scatter(-1, ids, ~keep), float("-inf")
        )
        return logits, ids, keep

    def _kept(self, ids: torch.Tensor, keep: torch.Tensor) -> Kept:
        # kept ids come first, so the rest need not be copied from the device
        most = int(np.flatnonzero(keep.any(0).cpu().numpy())[-1]) + 1
        rows = zip(
            self._cut_rows,
            ids[:, :most].cpu().numpy(),
            keep[:, :most].cpu().numpy(),
            strict=True,
        )
        return {
            int(row): tuple(sorted(row_ids[row_keep].tolist())) for row, row_ids, row_keep in rows
        }

    def _allowed_bias(self, rows: Int64Array) -> torch.Tensor | None:
        restricted = self._restricted[rows]
        if self._allowed is None or not restricted.any():
            return None
        bias = self._allowed[self._there(rows)]
        # a row that was restricted before still has mask entries, which are ignored
        return torch.where(self._there(restricted)[:, None], bias, 0.0)

    def _column(self, values: np.ndarray[Any, Any], neutral: float | bool) -> torch.Tensor | None:
        """Return the values as [rows, 1], or None if all are neutral."""
        return None if (values == neutral).all() else self._there(values)[:, None]

    def _there(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def cumulate(probabilities: torch.Tensor, *, whole: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (cumulative probabilities, a total that is finite if every probability is).

    Args:
        probabilities: float32 [rows, vocab_size].
        whole: whether to sum in int64, as multiples of the smallest uniform number, rounded down;
        otherwise in float64.
    """
    if not whole:
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        return cumulative, cumulative[:, -1:]
    units = (probabilities.double() * 2.0**_KEPT_BITS).long()
    return units.cumsum(-1), probabilities.sum(-1, keepdim=True)


def _uniforms(
    keys: np.ndarray[Any, np.dtype[np.uint64]], positions: Int64Array
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return uniform numbers in [0, 1): SplitMix64 (Steele et al. 2014) of key and counter."""
    state = keys + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    numbers: np.ndarray[Any, np.dtype[np.float64]] = state >> np.uint64(64 - _KEPT_BITS)
    return numbers * 2.0**-_KEPT_BITS
