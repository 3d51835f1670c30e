"""The shapes of a pipeline's policy, from which the costs of tokens are computed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollart_flow.errors import SettingsError
from rollart_flow.models.policy import Policy
from rollart_flow.simulation.hardware import SimulatedModel

_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_CHARACTERS = 100
"""Tokens of the vocabulary of a model made from scratch, roughly: printable characters."""


def shape_of(policy: Policy) -> SimulatedModel:
    """Return the sizes of a policy; reads no weights.

    Raises:
        SettingsError: the model's `config.json` cannot be read, or lacks a size.
    """
    if policy.path is None:
        values: dict[str, Any] = {
            "hidden_size": policy.hidden,
            "num_hidden_layers": policy.layers,
            "num_attention_heads": policy.heads,
            "num_key_value_heads": policy.key_value_heads,
            "head_dim": policy.head_dim,
            "intermediate_size": policy.intermediate,
            "vocab_size": _CHARACTERS + len(policy.words),
            "tie_word_embeddings": True,
        }
        return _model("tiny", values)
    path = Path(policy.path) / "config.json"
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        values = {**said, **(said.get("text_config") or {})}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"policy: {path} cannot be read, so the model's size is not known"
        ) from error
    return _model(Path(policy.path).name, values)


def _model(name: str, values: Mapping[str, Any]) -> SimulatedModel:
    if missing := [key for key in _NEEDED if not isinstance(values.get(key), int)]:
        raise SettingsError(
            f"policy: config.json of {name} has no {missing[0]}, so its size is not known"
        )
    hidden, layers, heads, words = (int(values[key]) for key in _NEEDED)
    head = int(values.get("head_dim") or hidden // heads)
    query, kv = heads * head, int(values.get("num_key_value_heads") or heads) * head
    attention = 2 * hidden * (query + kv)
    embeddings = hidden * words * (1 if values.get("tie_word_embeddings") else 2)
    experts = int(values.get("num_experts") or values.get("num_local_experts") or 1)
    dense = int(values.get("intermediate_size") or 4 * hidden)
    if experts == 1:
        total = layers * (attention + 3 * hidden * dense) + embeddings
        return SimulatedModel(name, float(total), layers, hidden, query, kv)
    one = 3 * hidden * int(values.get("moe_intermediate_size") or dense)
    used = int(values.get("num_experts_per_tok") or 1)
    total = layers * (attention + experts * one) + embeddings
    active = float(layers * (attention + used * one) + embeddings)
    return SimulatedModel(name, float(total), layers, hidden, query, kv, active=active)
