"""`export`: a version of a run's policy as a folder that transformers and vLLM load.

Invariants: the folder appears whole, with the verified weights of one version; nothing of the run
is executed or changed; at most one file of the folder is in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart_flow.errors import SettingsError, StoreError
from rollart_flow.exporting.card import model_card
from rollart_flow.exporting.places import new_place
from rollart_flow.exporting.shards import write_shards
from rollart_flow.exporting.versions import chosen_version, opened_weights
from rollart_flow.models.architectures import PROCESSOR_FILES
from rollart_flow.store import Run, files, open_run
from rollart_flow.store.layout import policy_uri
from rollart_flow.weights.atomic import put_folder
from rollart_flow.weights.folder_store import file_in

CARD, CONFIG, GENERATION = "README.md", "config.json", "generation_config.json"
_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", *PROCESSOR_FILES,
)  # fmt: skip
"""Files of the tokenizer, and of the image processor of a model that takes images."""


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported version."""

    run: str
    version: int
    folder: str
    source: str
    """Place that the version was read from: "weights", "checkpoint" or "policy"."""
    lora: bool
    """Whether the adapter of the run's evaluation was merged into the weights."""
    size_bytes: int
    """Size of the weights."""


def export(
    run: Run | str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    version: int | None = None,
    lora: bool = False,
    store: str | os.PathLike[str] | None = None,
) -> Exported:
    """Write a version of a run's policy as a Hugging Face folder, with a card of its provenance.

    Args:
        run: an opened run, or the path, URI or name of one, which may still be running.
        to: the new folder, on this machine.
        version: number of the training step; by default the newest version that is stored.
        lora: whether to merge the LoRA adapter that the run is evaluated with.
        store: store in which names are looked up; $ROLLART_STORE or ./runs by default.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: the folder exists, the version is not stored (the message names those that
            are), or the run has no adapter.
        StoreError, WeightsError, TrainerError: the version cannot be read, or the folder written.
    """
    stored = run if isinstance(run, Run) else open_run(run, store=store)
    target = new_place(to, "folder for the model")
    chosen, place = chosen_version(stored, version)
    policy = _policy_files(stored)
    with ExitStack() as context:
        tensors = context.enter_context(opened_weights(stored, chosen, place))
        if lora:
            tensors = _with_adapter(stored, tensors)
        size = 0

        def fill(folder: Path) -> None:
            nonlocal size
            size, dtype = write_shards(tensors, folder)
            texts = {
                **{name: text for name, text in policy.items() if name in _TOKENIZER},
                CONFIG: _json({**json.loads(policy[CONFIG]), "dtype": dtype}),
                GENERATION: _json(_generation(stored.info.settings, policy)),
                CARD: model_card(stored, chosen, lora=lora, images=takes_images(policy)),
            }
            for name, text in texts.items():
                (folder / name).write_text(text, encoding="utf-8")

        with files.converting(f"cannot write {target}"):
            put_folder(target, fill)
    return Exported(stored.info.name, chosen, str(target), place, lora, size)


def _policy_files(run: Run) -> dict[str, str]:
    """Return the run's policy folder without its weights: texts by file name."""
    found = {}
    for name in (CONFIG, GENERATION, *_TOKENIZER):
        content = file_in(policy_uri(run.uri), name)
        if content is not None:
            found[name] = content.decode()
    for name in (CONFIG, *_TOKENIZER[:2]):
        if name not in found:
            raise StoreError(f"no {name} in {policy_uri(run.uri)}; restore it from a copy")
    return found


def takes_images(policy: Mapping[str, str]) -> bool:
    """Return whether a model folder, given as texts by file name, has a vision tower."""
    return "vision_config" in json.loads(policy[CONFIG])


def _with_adapter(run: Run, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the weights with the run's adapter applied."""
    from rollart_flow.models.lora import Merged
    from rollart_flow.runner.adapters import stored_adapter

    nodes = run.info.settings.get("nodes", {})
    evaluate = next((name for name, n in nodes.items() if n["kind"] == "evaluate"), None)
    adapter = None if evaluate is None else stored_adapter(run, evaluate)
    if adapter is None:
        raise SettingsError(f"run {run.info.name} has no LoRA adapter: evaluate has no lora")
    return Merged.of(tensors, adapter)


def _generation(settings: Mapping[str, Any], policy: Mapping[str, str]) -> dict[str, Any]:
    """Return the generation config: the token ids, and the sampling of the run's rollout."""
    from rollart_flow.models.chat.codec import TextCodec

    nodes = settings.get("nodes", {}).values()
    rollout: Mapping[str, Any] = next((n for n in nodes if n.get("kind") == "rollout"), {})
    stops = rollout.get("stop_token_ids") or TextCodec(policy).stop_token_ids
    ids = {**json.loads(policy.get(GENERATION, "{}")), "eos_token_id": list(stops)}
    if "max_tokens" in rollout:
        ids["max_new_tokens"] = rollout["max_tokens"]
    if rollout.get("temperature") == 0:
        return {**ids, "do_sample": False}
    sampling = {
        name: rollout[name] for name in ("temperature", "top_p", "top_k") if name in rollout
    }
    return {**ids, **sampling, "do_sample": True}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"
